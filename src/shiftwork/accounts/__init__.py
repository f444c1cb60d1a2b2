"""Accounts at providers, their windows, and which account a claim uses."""
