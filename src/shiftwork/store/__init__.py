"""Where the queue is kept: transactions over SQLite or PostgreSQL, and every SQL statement by name."""
