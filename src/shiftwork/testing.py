"""Helpers for tests of programs that use the queue: time is moved, never waited for."""

from __future__ import annotations

from shiftwork.duties.runner import run_once
from shiftwork.queue.queue import Queue


class MovedClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start: float = 1_765_800_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


async def pass_time(queue: Queue, clock: MovedClock, seconds: float) -> dict[str, dict[str, int]]:
    """Move the clock and run every duty once; what they did."""
    clock.advance(seconds)
    return await run_once(queue.engine, force=True)
