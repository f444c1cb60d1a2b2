"""Concurrent access to one queue over real connections."""
