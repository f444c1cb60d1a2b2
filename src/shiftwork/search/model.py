"""Filters of tasks, as callers state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from shiftwork.model.task import Fields, Name, Search
from shiftwork.model.times import Time

Level = Literal["high", "medium", "low"]
LEVELS: dict[str, tuple[float | None, float | None]] = {
    "high": (None, 30.0),
    "medium": (30.0, 60.0),
    "low": (60.0, None),
}
"""The priorities of each level: the lowest, and the first beyond it."""


class TaskFilter(Fields):
    """Tasks that match every condition given. `status` may name several states, as a list or with commas."""

    status: Name | list[Name] | None = None
    type: Name | None = None
    agent: Name | None = None
    """Held by this agent, or targeted at it."""
    issue: Name | None = None
    tag: Name | None = None
    dag: Name | None = None
    parent: Name | None = None
    since: Time | None = None
    """Created then or later."""
    until: Time | None = None
    """Created before then."""
    search: Search | None = None
    reason: Name | None = None
    """Why it last failed: `timeout`, `agent_error`, …"""
    level: Level | None = None
    """Of this priority level."""


class Conditions(TypedDict, total=False):
    """The conditions of a filter as the operations on tasks take them, each by name."""

    status: str | Sequence[str] | None
    type: str | None
    agent: str | None
    issue: str | None
    tag: str | None
    dag: str | None
    parent: str | None
    since: Time | None
    until: Time | None
    search: str | None
    reason: str | None
