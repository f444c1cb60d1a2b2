"""Pausing, purging and watching the queue as a whole."""
