"""The state of maintenance: late jobs, the processes that run them, and paused reclaims."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shiftwork.store.store import Row

PROCESS = "process:"
"""The prefix of the rows of maintenance processes, which are among the jobs."""

SERVER = "server:"
"""The same for servers that leave maintenance to others."""

LATE_SEC = 60.0
"""A job that has been due for this long is late. Jobs without work are recorded as run every few seconds."""

ALIVE_SEC = 30.0
"""A process that has written within this time is running."""

_NOT_BY_PERIOD = frozenset({"restore", "clock", "snapshot"})
"""Rows without a period, and snapshots, which only some processes take and which have their own alert."""


class Resting(msgspec.Struct, frozen=True):
    """Until when a process reclaims nothing for silence, and why."""

    until: float
    why: str


def jobs_of(rows: Iterable[Row]) -> list[Row]:
    """Only the jobs."""
    return [row for row in rows if not row["name"].startswith((PROCESS, SERVER))]


def late_sec(job: Row, now: float) -> float:
    """For how long a job has been late; 0 if it is not."""
    late: float = now - job["due_at"]
    return late if late > LATE_SEC and job["name"] not in _NOT_BY_PERIOD else 0.0


def resting(rows: Iterable[Row], now: float) -> Resting | None:
    """Until when no process reclaims anything for silence; None if any does, or none is running."""
    running = [row for row in rows if row["name"].startswith(PROCESS) and row["last_run_at"] > now - ALIVE_SEC]
    rests = [msgspec.json.decode(row["counts"], type=Resting) for row in running if row["counts"]]
    ahead = [rest for rest in rests if rest.until > now]
    if not running or len(ahead) < len(running):
        return None
    return min(ahead, key=lambda rest: rest.until)
