"""The result of a maintenance job, and the size of its batches."""

from __future__ import annotations

Counts = dict[str, int]
"""The counts of a run, by name."""

BATCH = 500
