"""Tokens, their scopes, and who is let in."""
