"""The deadline of a call that began before it reached the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_END: ContextVar[float | None] = ContextVar("shiftwork_deadline", default=None)


@contextmanager
def ends_at(moment: float) -> Iterator[None]:
    """Store calls inside the context end by this time of the running loop."""
    token = _END.set(moment)
    try:
        yield
    finally:
        _END.reset(token)


def left(most: float) -> float:
    """The seconds that a call has left; `most` if there is no deadline."""
    end = _END.get()
    return most if end is None else max(0.0, min(most, end - asyncio.get_running_loop().time()))


def cancellations() -> int:
    """How often the current task was cancelled: not zero while it cleans up after that."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
