"""A state machine that makes random calls on both stores and checks every invariant after each."""
