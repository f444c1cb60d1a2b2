"""What keeps work from being handed out: gates, breakers, cooldowns, limits, capacity and quotas."""
