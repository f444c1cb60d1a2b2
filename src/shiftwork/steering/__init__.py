"""Instructions for the holder of a task, sent while it works."""
