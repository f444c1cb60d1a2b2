"""Rules of observability: when failures are significant, and how times are summarized."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shiftwork.model.task import NewTask
from shiftwork.settings.model import FrictionTask

FEW = 100_000
"""Up to this many tasks are counted on every request. More are counted at most once in `maintenance.metrics_sec`."""


class TaskCounts(NamedTuple):
    """The number of tasks: unfinished ones are read, finished ones are kept as sums."""

    at: float
    counts: dict[str, int]
    types: dict[str, dict[str, int]]
    tiers: dict[str, int]
    tombstones: int
    archived: dict[str, int]
    by_tier: dict[tuple[str, str], int]
    """Tasks by state and tier."""
    depth: dict[str, int]
    """Waiting tasks by current level."""
    by_lane: dict[tuple[int, str, str | None], int]
    """Waiting tasks by lane, state and hold."""
    scheduled: int
    next_scheduled_at: float | None
    rows_read: int
    """How many tasks were read for this count."""

    def serves(self, now: float, period: float) -> bool:
        """Whether it may be reused: counting has become expensive, and it is not too old."""
        return self.rows_read > FEW and 0 <= now - self.at < period


Spell = tuple[float, float]
"""An interval in which something was held."""


class AttemptCounts(NamedTuple):
    """How many attempts ended, and how many of them failed."""

    failed: int
    ended: int

    @property
    def rate(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


def is_too_high(ended: AttemptCounts, rate: float, least: int) -> bool:
    """Whether the failure rate is reached, over enough attempts to be significant."""
    return ended.ended >= least and ended.rate >= rate


def task_about(create: FrictionTask, signature: str, what: dict[str, Any]) -> NewTask:
    """The task to create about a friction; there is one at a time."""
    return NewTask(
        type=create.type,
        title=create.title.replace("{type}", str(what["type"])),
        priority=create.priority,
        payload={**create.payload, "friction": {"signature": signature, **what}},
        created_by="friction",
        idempotency_key=f"friction:{hashlib.sha256(signature.encode()).hexdigest()[:32]}",
        settings={"idempotency": {"source": "caller", "window_sec": None, "on_duplicate": "return_existing"}},
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of these values, in order, that this share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def busy_sec(spells: Iterable[Spell], since: float, until: float) -> float:
    """The part of this time covered by at least one interval."""
    covered, end = 0.0, since
    for first, last in sorted(spells):
        held = min(last, until) - max(first, end)
        if held > 0:
            covered += held
            end = min(last, until)
    return covered


def le(bound: float) -> str:
    return str(float(bound))
