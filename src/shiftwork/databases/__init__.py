"""Many databases: which workspace is in which of them, and how it is moved to another."""
