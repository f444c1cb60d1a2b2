"""Protection: gates, breakers, cooldowns, limits, capacity and quotas."""
