"""Whose turn it is: shares, serial keys, affinity, and preemption."""
