"""Quotas of a workspace: tasks, bytes, and submissions per minute."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shiftwork.model.task import Fields

Most = Annotated[int, Meta(ge=1, le=10**15)]
MINUTE = 60.0


class Quota(Fields):
    """The quota of a workspace, set by the operator of the server; null means no limit."""

    max_tasks: Most | None = None
    """Stored tasks of any status, until they are archived or purged."""
    max_bytes: Most | None = None
    """Bytes of submissions and artifacts."""
    submits_per_minute: Most | None = None
    """Tasks, not calls. A minute's worth may be submitted at once."""

    @property
    def is_empty(self) -> bool:
        return self.max_tasks is None and self.max_bytes is None and self.submits_per_minute is None


def refilled(room: float, rate: int, elapsed: float) -> float:
    """How many may be submitted now, if this many could be some seconds ago."""
    return min(float(rate), room + rate * max(0.0, elapsed) / MINUTE)


def wait_for(count: int, room: float, rate: int) -> float:
    """Seconds until this many may be submitted."""
    return max(0.0, (count - room) * MINUTE / rate)
