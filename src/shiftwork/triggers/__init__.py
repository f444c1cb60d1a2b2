"""Triggers: detection and firing."""
