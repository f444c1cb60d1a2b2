"""Integrations with other frameworks. Each module needs its framework to be installed."""
