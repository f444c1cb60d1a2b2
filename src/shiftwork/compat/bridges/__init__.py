"""Bridges: the same tasks in the files and streams of other systems."""
