"""Whole queues: read at one moment, kept in a file, written into an empty database of either kind."""
