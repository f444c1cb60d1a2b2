"""Reads the limits that model providers report."""
