"""Lets callers wait for the next event: one poll of the log's end serves all waiters of a process."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from shiftwork.engine import event_log
from shiftwork.model.errors import ShiftworkError
from shiftwork.store.store import Store

POLL_SEC = 0.05
"""How often the end of the log is polled while anyone waits: events are not announced."""


class EventWaiters:
    """The waiters, with the number after which each waits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[asyncio.Event, int] = {}
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def parked(self) -> int:
        """How many callers wait now."""
        return len(self._waiting)

    async def park(self, after: int, seconds: float) -> None:
        """Wait until an event has a number above this one, the time is up, or the queue is closed."""
        if self._closed or seconds <= 0:
            return
        woken = asyncio.Event()
        self._waiting[woken] = after
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_while_awaited())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        finally:
            self._waiting.pop(woken, None)

    async def _look_while_awaited(self) -> None:
        while self._waiting:
            with suppress(ShiftworkError):  # the caller's own query reports the error
                newest = await self._store.read(event_log.last)
                for woken, after in self._waiting.items():
                    if newest > after:
                        woken.set()
            await asyncio.sleep(POLL_SEC)

    def wake_all(self) -> None:
        """Wake all waiters to look again."""
        for woken in self._waiting:
            woken.set()

    async def close(self) -> None:
        self._closed = True
        self.wake_all()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
