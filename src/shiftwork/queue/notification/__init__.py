"""Who is told outside, and what has been sent to them."""
