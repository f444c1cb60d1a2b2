"""Many hands on one queue at the same time, over real connections."""
