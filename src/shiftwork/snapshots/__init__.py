"""Snapshots: a whole queue read at one moment, stored in a file, and restored into an empty database of either kind."""
