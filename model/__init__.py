"""The protocol of claims and dependencies as a model that a checker explores whole, and broken variants it rejects."""
