"""Fairness: shares, serial keys, affinity, and preemption."""
