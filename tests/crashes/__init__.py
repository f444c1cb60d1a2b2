"""Processes that die at any instruction, and a writer that survives errors inside it."""
