"""Observability: status, explanations, metrics and alerts."""
