"""Waits for a time, a signal or a person."""
