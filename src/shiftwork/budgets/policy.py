"""Budget rules: the grant of a claim, the share of an attempt, and when to warn or stop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import NamedTuple

WARN_AT = (80, 95, 100)
"""Percentages of a ceiling at which to warn, once each."""


def grant(limit: int | None, estimate: int, left: Iterable[int]) -> int | None:
    """The grant for an attempt, given what is left at each level above it; None if that is too little.

    A task with an estimate of its own gets all of it or nothing. Others get the default estimate, or what is left.
    """
    least = min(left, default=None)
    if least is None:
        return estimate if limit is None else limit
    if limit is None:
        return min(estimate, least) if least > 0 else None
    return limit if limit <= least else None


class BudgetShare(NamedTuple):
    """An attempt's share of a budget."""

    spent: int
    granted: int


def share(granted: int, used: int, *, over: bool) -> BudgetShare:
    """While it runs, the rest of its grant is set aside; once it has ended, a grant still open counts as spent."""
    if over:
        return BudgetShare(max(used, granted), 0)
    return BudgetShare(used, max(granted - used, 0))


def left(ceiling: int | None, spent: int, granted: int) -> int | None:
    """What may still be granted; None without a limit."""
    return None if ceiling is None else ceiling - spent - granted


def reached(ceiling: int | None, spent: int) -> int:
    """The highest warning percentage reached by the spending; 0 below the first."""
    if ceiling is None or spent <= 0:
        return 0
    return max((percent for percent in WARN_AT if spent * 100 >= ceiling * percent), default=0)


def is_over(granted: int, used: int, rest: int | None) -> bool:
    """Whether an attempt must stop: it has used more than it was granted, and its budget has nothing more to give."""
    return used > granted and rest is not None and rest < 0


def day_of(at: float) -> str:
    """The day in UTC, which names its budget."""
    return dt.datetime.fromtimestamp(at, dt.UTC).date().isoformat()


def day_begins(at: float) -> float:
    """The first moment of that day."""
    return at - at % 86_400


def span_of(day: str) -> dict[str, float]:
    """The claim times that this day pays for."""
    since = dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC).timestamp()
    return {"since": since, "until": since + 86_400}
