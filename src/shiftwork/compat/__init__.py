"""The five documents: their names, their files and streams, and the work that others take outside of the queue."""
