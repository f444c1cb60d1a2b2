"""Words, states and rules of the queue. Pure: no I/O, no clock, no database."""
