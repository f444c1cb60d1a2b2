"""Queue capacity: admission, displacement and fill level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from shiftwork.settings.model import Level, Settings

LEVELS: tuple[Level, ...] = ("low", "medium", "high")
"""The least urgent first: the order in which levels are displaced."""

Scope = Literal["total", "high", "medium", "low"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Fill = Literal["normal", "warning", "critical"]

RECENT_SEC = 300.0
"""A task younger than this counts as recent, and is displaced after older ones."""


class Limits(NamedTuple):
    """The most tasks that may wait, in total and per level; None means no limit."""

    total: int | None
    high: int | None
    medium: int | None
    low: int | None

    def of(self, scope: Scope) -> int | None:
        limit: int | None = getattr(self, scope)
        return limit


class Class(NamedTuple):
    """One class of tasks that are displaced together, the oldest first; None matches either."""

    depends: bool
    recent: bool | None
    retried: bool | None


CLASSES = (
    Class(depends=False, recent=False, retried=False),
    Class(depends=False, recent=False, retried=True),
    Class(depends=False, recent=True, retried=None),
    Class(depends=True, recent=None, retried=None),
)
"""Within a level, the first class is displaced first: plain old tasks, then those tried before, then recent ones, then
those with dependencies."""


def limits_of(settings: Settings) -> Limits | None:
    """The limits in force, or None if nothing is limited."""
    quotas = settings.priority_quotas
    limits = Limits(settings.max_queue_size, quotas.high, quotas.medium, quotas.low)
    return None if limits == Limits(None, None, None, None) else limits


def is_counted(settings: Settings) -> bool:
    """Whether the waiting tasks of a workspace must be countable at any moment."""
    return limits_of(settings) is not None or settings.alerts.queue_depth is not None


def needing_displacement(limits: Limits, waiting: Mapping[Level, int], newcomers: Sequence[Level]) -> list[Level]:
    """The new tasks that find no free place and must displace others, the least urgent first.

    Free places go to the least urgent tasks, which can displace none. A level at its quota gets no free places.
    """
    taken: Counter[str] = Counter(waiting)
    total = sum(waiting.values())
    needy: list[Level] = []
    for level in sorted(newcomers, key=LEVELS.index):
        quota = limits.of(level)
        if (limits.total is not None and total >= limits.total) or (quota is not None and taken[level] >= quota):
            needy.append(level)
        else:
            total += 1
            taken[level] += 1
    return needy


def below(level: Level) -> tuple[Level, ...]:
    """The levels whose tasks this one displaces, in order."""
    return LEVELS[: LEVELS.index(level)]


def filled(limits: Limits, waiting: Mapping[Level, int]) -> dict[Scope, float]:
    """The share of each limit that is used."""
    counts: dict[Scope, int] = {"total": sum(waiting.values()), **{level: waiting.get(level, 0) for level in LEVELS}}
    return {scope: _share(counts[scope], limit) for scope in SCOPES if (limit := limits.of(scope)) is not None}


def _share(count: int, limit: int) -> float:
    return count / limit if limit else 1.0


def fill(share: float, settings: Settings) -> Fill:
    if share >= settings.critical_at:
        return "critical"
    return "warning" if share >= settings.warning_at else "normal"


def room(limits: Limits | None, waiting: Mapping[Level, int], level: Level) -> int | None:
    """How many more tasks of a level would find free places; None means no limit."""
    if limits is None:
        return None
    quota = limits.of(level)
    left = [] if quota is None else [quota - waiting.get(level, 0)]
    if limits.total is not None:
        left.append(limits.total - sum(waiting.values()))
    return max(0, min(left)) if left else None
