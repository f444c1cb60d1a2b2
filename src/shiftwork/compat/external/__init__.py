"""Work claimed outside of the queue: from streams, and in the files of a folder."""
