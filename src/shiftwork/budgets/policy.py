"""Budget rules: the grant of a claim, the share of an attempt, and when to warn or stop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import NamedTuple

WARN_AT = (80, 95, 100)
"""Percent of a ceiling that are warned of, once each."""


def grant(limit: int | None, estimate: int, left: Iterable[int]) -> int | None:
    """What to set aside for an attempt where this much is left at each level above it; None where that is too little.

    A task that names its price gets all of it or nothing. One that names none gets the estimate, or what is left.
    """
    least = min(left, default=None)
    if least is None:
        return estimate if limit is None else limit
    if limit is None:
        return min(estimate, least) if least > 0 else None
    return limit if limit <= least else None


class BudgetShare(NamedTuple):
    """What an attempt takes up of a budget."""

    spent: int
    granted: int


def share(granted: int, used: int, *, over: bool) -> BudgetShare:
    """While it runs, the rest of its grant is set aside; once it is over, a grant that is left open counts as spent."""
    if over:
        return BudgetShare(max(used, granted), 0)
    return BudgetShare(used, max(granted - used, 0))


def left(ceiling: int | None, spent: int, granted: int) -> int | None:
    """What may still be granted; None where there is no limit."""
    return None if ceiling is None else ceiling - spent - granted


def reached(ceiling: int | None, spent: int) -> int:
    """The highest percentage to warn of that what was spent has come to; 0 below the first."""
    if ceiling is None or spent <= 0:
        return 0
    return max((percent for percent in WARN_AT if spent * 100 >= ceiling * percent), default=0)


def is_over(granted: int, used: int, rest: int | None) -> bool:
    """Whether an attempt must stop: it has used more than it was granted, and its budget has nothing more to give."""
    return used > granted and rest is not None and rest < 0


def day_of(at: float) -> str:
    """The day in UTC, as budgets are named by it."""
    return dt.datetime.fromtimestamp(at, dt.UTC).date().isoformat()


def day_begins(at: float) -> float:
    """The first moment of that day."""
    return at - at % 86_400


def span_of(day: str) -> dict[str, float]:
    """When what is paid by this day is claimed."""
    since = dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC).timestamp()
    return {"since": since, "until": since + 86_400}
