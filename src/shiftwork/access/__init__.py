"""Tokens, scopes and authentication."""
