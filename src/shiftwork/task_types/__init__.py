"""Task types: schemas of payloads and results, and typed functions."""
