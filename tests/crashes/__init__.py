"""Processes that die at any instruction, and a writer that outlives what happens inside it."""
