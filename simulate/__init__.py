"""A day in the life of a fleet, in minutes: moved clock, providers that refuse, budgets, agents that die."""
