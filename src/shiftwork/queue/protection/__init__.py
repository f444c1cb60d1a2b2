"""What keeps work from being handed out: gates, breakers, cooldowns, limits, and how much may wait."""
