"""Programs that tests run."""
