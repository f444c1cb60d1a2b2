"""Workers: in process on both stores, and in real processes that are killed, stopped and disconnected."""
