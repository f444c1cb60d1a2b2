"""Agents: registered, alive, present on a runtime."""
