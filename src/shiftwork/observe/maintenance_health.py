"""The state of maintenance: late jobs, the processes that run them, and paused reclaims."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shiftwork.store.store import Row

PROCESS = "process:"
"""Rows of processes that run maintenance stand among the jobs; their names begin so."""

SERVER = "server:"
"""The same for servers that leave maintenance to others."""

LATE_SEC = 60.0
"""A job that has been due for this long is late. Those without work are noted as run every few seconds."""

ALIVE_SEC = 30.0
"""A process that has written within this time runs."""

_NOT_BY_PERIOD = frozenset({"restore", "clock", "snapshot"})
"""Rows that say when something happened; and the snapshots, which some processes take alone and have an alert."""


class Resting(msgspec.Struct, frozen=True):
    """Until when a process takes nothing back for silence, and why."""

    until: float
    why: str


def jobs_of(rows: Iterable[Row]) -> list[Row]:
    """The jobs alone."""
    return [row for row in rows if not row["name"].startswith((PROCESS, SERVER))]


def late_sec(job: Row, now: float) -> float:
    """For how long a job has been late; 0 if it is not."""
    late: float = now - job["due_at"]
    return late if late > LATE_SEC and job["name"] not in _NOT_BY_PERIOD else 0.0


def resting(rows: Iterable[Row], now: float) -> Resting | None:
    """Until when no process takes anything back for silence; None if one does, or none runs."""
    running = [row for row in rows if row["name"].startswith(PROCESS) and row["last_run_at"] > now - ALIVE_SEC]
    rests = [msgspec.json.decode(row["counts"], type=Resting) for row in running if row["counts"]]
    ahead = [rest for rest in rests if rest.until > now]
    if not running or len(ahead) < len(running):
        return None
    return min(ahead, key=lambda rest: rest.until)
