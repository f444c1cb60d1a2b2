"""How fast the queue is, measured so that anyone can do it again: `python -m bench`, or `make bench`."""
