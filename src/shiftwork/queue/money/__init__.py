"""Budgets, what is granted with work, and what is booked when it ends."""
