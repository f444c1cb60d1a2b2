"""Output validation: immediate, by tests, or by a judge."""
