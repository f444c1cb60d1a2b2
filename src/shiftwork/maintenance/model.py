"""The result of a maintenance job, the size of its batches, and which workspaces are next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Counts = dict[str, int]
"""The counts of a run, by name."""

BATCH = 500


MAX_WORKSPACES = 50
"""Workspaces in one turn."""


def next_workspaces(names: Sequence[str], last: str | None) -> list[str]:
    """The next workspaces of a job that walks through all of them.

    All names if there are few, otherwise those after the last; `names` are sorted.
    """
    place = bisect_right(names, last or "")
    return [*names[place:], *names[:place]][:MAX_WORKSPACES]
