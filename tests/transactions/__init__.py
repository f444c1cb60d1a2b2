"""Tasks that are submitted in the transaction of a caller's own connection."""
