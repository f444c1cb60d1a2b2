"""Budgets, grants and booked costs."""
