"""What every maintenance job answers, and how much it does at a time."""

from __future__ import annotations

Counts = dict[str, int]
"""What a run has done, by name."""

BATCH = 500
