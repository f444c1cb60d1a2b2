"""Each document from top to bottom, in its own profile and its own names."""
