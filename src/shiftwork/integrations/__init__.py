"""Shiftwork in other frameworks; each part is imported where its framework is installed."""
