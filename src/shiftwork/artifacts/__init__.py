"""Artifacts: content by its hash, what tasks work on, what their results name, and where the bytes are."""
