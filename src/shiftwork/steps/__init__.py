"""Durable steps and once-only effects."""
