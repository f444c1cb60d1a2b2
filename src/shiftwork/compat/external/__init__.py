"""Work that others take outside of the queue: in streams, and in the files of a folder."""
