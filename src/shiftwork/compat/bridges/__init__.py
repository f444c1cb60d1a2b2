"""Bridges: mirror tasks in the files and streams of other systems."""
