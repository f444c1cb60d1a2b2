"""Shiftwork and other task queues in one interleaved run on one machine: `make bench-peers`."""
