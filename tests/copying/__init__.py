"""Whole queues: copies, snapshots, and their failures."""
