"""Storage: transactions over SQLite or PostgreSQL, and every SQL statement by name."""
