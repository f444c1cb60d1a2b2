"""Whether an output is accepted: checked at once, by tests, or by a judge."""
