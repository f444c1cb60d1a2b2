"""Chooses the next workspaces for a job that walks through all of them, a bounded number at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

MAX_COUNT = 50
"""Workspaces in one turn."""


def next_of(names: Sequence[str], last: str | None) -> list[str]:
    """All names if there are few, otherwise those after the last; `names` are sorted."""
    place = bisect_right(names, last or "")
    return [*names[place:], *names[:place]][:MAX_COUNT]
