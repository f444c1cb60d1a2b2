"""What every store must do: each test runs on SQLite and on PostgreSQL."""
