"""Preemption: chooses the running task that yields to one whose deadline is near."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shiftwork.engine.rank import Parts


class Running(NamedTuple):
    """A running task as preemption sees it."""

    id: str
    parts: Parts
    claimed_at: float


def lowest(running: Iterable[Running], urgent: Parts) -> Running | None:
    """The least urgent of the tasks less urgent than this one; among equals the youngest, which loses least work."""
    able = [each for each in running if not each.parts.urgent and each.parts.effective > urgent.effective]
    return max(able, key=lambda each: (each.parts.effective, each.claimed_at, each.id), default=None)
