"""Whose turn it is: shares, serial keys, affinity, and work that makes way."""
