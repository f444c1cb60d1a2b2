"""Tasks submitted in the transaction of a caller's connection."""
