"""Simulates a day or a week of a fleet in minutes: moved clock, rate-limited providers, budgets, agents that die."""
