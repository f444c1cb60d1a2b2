"""Maintenance: each job is bounded, safe to run twice and in many processes."""
