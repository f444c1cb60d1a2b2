"""Servers that go away and come back, clocks that disagree, and poolers in between."""
