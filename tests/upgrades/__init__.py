"""Programs of the last release next to those of this version, on one queue."""
