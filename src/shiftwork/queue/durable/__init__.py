"""What outlives an attempt: steps, and effects that happen once."""
