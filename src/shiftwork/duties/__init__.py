"""Housekeeping: each duty is `run_once`, bounded, safe to run twice and in many processes."""
