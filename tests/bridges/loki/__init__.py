"""The `.loki` folder: its files, and its scripts."""
