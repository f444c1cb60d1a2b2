"""A queue in a schema of the caller's own database, whose tables have the same names."""
