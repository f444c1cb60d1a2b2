"""Models of claims and dependencies, which a checker explores fully, and broken variants that it must reject."""
