"""What is said while a task is worked on: lines of its handler, and what a command agent prints."""
