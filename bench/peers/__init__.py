"""Programs on other queues, run with a Python of their own: see `bench.beside`."""
