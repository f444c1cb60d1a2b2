"""A machine that makes random moves on both stores and checks every invariant after each."""
