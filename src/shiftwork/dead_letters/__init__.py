"""Dead letters and their review."""
