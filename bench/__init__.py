"""Reproducible measurements of the queue's speed: `python -m bench`, or `make bench`."""
