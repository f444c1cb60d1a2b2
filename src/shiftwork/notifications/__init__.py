"""Notifications: sinks, deliveries, and the sender."""
