"""Artifacts: content by its hash, what tasks work on, and what their results name."""
