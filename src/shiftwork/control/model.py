"""Maintenance jobs, bridges and purges, as callers see them."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.model.task import Fields, Name
from shiftwork.search.model import Level


class Purge(Fields):
    """Which tasks to remove. Requires at least one condition; claimed tasks match only with `held`."""

    status: list[Name] = []
    type: Name | None = None
    tag: Name | None = None
    level: Level | None = None
    created_before: float | None = None
    held: bool = False


class MaintenanceJob(msgspec.Struct, frozen=True):
    """When a maintenance job last ran, how long it took and what it did; whether it is late or paused, and why."""

    name: str
    due_at: float
    last_run_at: float | None
    took_sec: float | None
    counts: dict[str, Any]
    runs: int
    late_sec: float
    rests_until: float | None
    why: str | None


class BridgeInfo(msgspec.Struct, frozen=True):
    """A bridge as its operator sees it."""

    name: str
    role: str
    seen_at: float
    """When it last polled."""
    unread: int
    """Entries on offer that no worker is known to have taken."""
    taken: int
    """Entries that workers have taken and not answered."""
    taken_in: int
    """Entries of a foreign orchestrator that are not answered yet."""
    events_after: int | None = None
    """The number of the last event published in its stream; None if it publishes none."""
