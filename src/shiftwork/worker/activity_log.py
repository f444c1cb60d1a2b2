"""Logs a worker's activity: a start line, a line per task, and at high rates one line per second."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shiftwork.model.text import dollars, duration, without_secrets

if TYPE_CHECKING:
    from shiftwork.worker.slots import RunningHandler

log = logging.getLogger("shiftwork.worker")
MAX_LINES = 20
"""Lines per second. While the rate is above this, one line a second counts all tasks."""

SHOWN_TYPES = 20


def log_start(store: str, workspace: str, agent_id: str, types: Iterable[str], slots: int) -> None:
    """Log what this worker is and does."""
    version = sys.modules["shiftwork"].__version__  # it imports this module
    names = sorted(types)
    shown = ", ".join(names[:SHOWN_TYPES]) + (f" and {len(names) - SHOWN_TYPES} more" * (len(names) > SHOWN_TYPES))
    facts: dict[str, Any] = {"version": version, "store": without_secrets(store), "workspace": workspace}
    facts |= {"agent_id": agent_id, "types": names, "concurrency": slots}
    log.info(
        "shiftwork %s: agent %s works on %s%s; types: %s; up to %d task%s at once",
        *(version, agent_id, facts["store"], "" if workspace == "default" else f", workspace {workspace}"),
        *(shown, slots, "" if slots == 1 else "s"),
        extra=facts,
    )


class TaskLog:
    """Logs a line for each ended task, as long as they are few; created only if lines are wanted."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._second_ends = 0.0
        self._ended = 0
        """Tasks of this second."""
        self._counts_only = False
        """Whether the last second had too many tasks for lines."""
        self._more: Counter[str] = Counter()
        self._cost = 0.0

    @property
    def now(self) -> float:
        return self._loop.time()

    def ended(self, tasks: Sequence[RunningHandler], outcome: str) -> None:
        """Log tasks that have ended alike."""
        now = self._loop.time()
        if now >= self._second_ends:
            self._begin_second(now)
        lines = 0 if self._counts_only else max(0, MAX_LINES - self._ended)
        self._ended += len(tasks)
        for work in tasks[:lines]:
            _log_line(work, outcome, round(now - work.began, 3))
        if more := tasks[lines:]:
            if not self._more:
                self._loop.call_at(self._second_ends, self._end_second)
            self._more[outcome] += len(more)
            self._cost += sum(work.context.cost_usd for work in more)

    def close(self) -> None:
        """Log the counts not logged yet."""
        if self._more:
            self._log_counts()

    def _begin_second(self, now: float) -> None:
        """Start a new second; lines resume with the first second that has few enough tasks."""
        self.close()
        self._counts_only = self._ended > MAX_LINES and now < self._second_ends + 1
        self._second_ends, self._ended = now + 1, 0

    def _end_second(self) -> None:
        if self._loop.time() >= self._second_ends:
            self.close()

    def _log_counts(self) -> None:
        outcomes, cost, total = dict(self._more.most_common()), self._cost, self._more.total()
        self._more.clear()
        self._cost = 0.0
        words = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
        paid = f"; {dollars(cost)}" if cost else ""
        facts = {"tasks": total, "outcomes": outcomes, "cost_usd": round(cost, 6)}
        more = "" if self._counts_only else "more "
        tasks = "task" if total == 1 else "tasks"
        log.info("%s %s%s ended within a second: %s%s", f"{total:,}", more, tasks, words, paid, extra=facts)


def _log_line(work: RunningHandler, outcome: str, seconds: float) -> None:
    held, cost = work.assignment, work.context.cost_usd
    facts = {"task_id": held.id, "type": held.type, "outcome": outcome, "seconds": seconds, "cost_usd": cost}
    paid = f", {dollars(cost)}" if cost else ""
    log.info("%s (%s): %s; took %s%s", held.id, held.type, outcome, duration(seconds), paid, extra=facts)
