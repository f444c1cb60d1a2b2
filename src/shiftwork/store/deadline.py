"""By when a call must be answered, where it began before the store was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_END: ContextVar[float | None] = ContextVar("shiftwork_deadline", default=None)


@contextmanager
def ends_at(moment: float) -> Iterator[None]:
    """What is asked of a store meanwhile ends by this time of the running loop."""
    token = _END.set(moment)
    try:
        yield
    finally:
        _END.reset(token)


def left(most: float) -> float:
    """The seconds that a call has left, `most` where no more is known."""
    end = _END.get()
    return most if end is None else max(0.0, min(most, end - asyncio.get_running_loop().time()))


def cancellations() -> int:
    """How often the task that runs here was asked to end: not zero where it is tidying up after that."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
