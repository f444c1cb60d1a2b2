"""Waiting for room in a full queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shiftwork.core.errors import InputError, QueueFull

T = TypeVar("T")
LONGEST_WAIT_SEC = 86_400.0
LOOK_EVERY_SEC = 0.5
"""Nobody announces room: whoever waits for it tries again so often."""


async def when_there_is_room(submit: Callable[[], Awaitable[T]], wait: float) -> T:
    """Submit; where the queue is full, again until it is let in or so many seconds have passed."""
    if not 0 <= wait <= LONGEST_WAIT_SEC:
        raise InputError(f"expected 0 to {LONGEST_WAIT_SEC:g} seconds, got {wait!r}", where="wait")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        try:
            return await submit()
        except QueueFull:
            left = deadline - loop.time()
            if left <= 0:
                raise
        await asyncio.sleep(min(left, LOOK_EVERY_SEC))
