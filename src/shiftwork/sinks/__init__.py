"""Notifications out: each kind of sink, what keeps them from private addresses, and the courier that sends."""
