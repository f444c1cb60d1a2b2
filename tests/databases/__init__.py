"""A queue on many databases, and workspaces that move between them."""
