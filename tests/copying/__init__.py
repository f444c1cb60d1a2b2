"""Whole queues: copies, snapshots, and what becomes of them when something goes wrong."""
