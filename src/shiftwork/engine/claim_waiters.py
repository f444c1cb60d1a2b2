"""Claims that wait for work, woken when a lane they can take gets some."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from shiftwork.model.errors import StoreClosed
from shiftwork.store.store import Store

MayTake = Callable[[int], bool]


class Waiter:
    """One parked claim; it knows which lanes it may take."""

    def __init__(self, may_take: MayTake) -> None:
        self.may_take = may_take
        self.woken = asyncio.Event()
        self.lanes: frozenset[int] = frozenset()
        self.tried: frozenset[int] = frozenset()
        """Who has looked at these lanes before, and found nothing or enough."""


class ClaimWaiters:
    """Wakes one claim per lane with news; it wakes the next once it has looked, so a burst is not a stampede."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def waiting(self, may_take: MayTake) -> AsyncIterator[Waiter]:
        if self._closed:  # no one would end what listens
            raise StoreClosed("this queue was closed")
        waiter = Waiter(may_take)
        self._waiters[id(waiter)] = waiter
        try:
            if self._listener is None or self._listener.done():
                self._listener = asyncio.create_task(self._listen())
                await asyncio.sleep(0)  # inside: who is cancelled here must not stay, and be woken for nothing
            yield waiter
        finally:
            self.pass_on(waiter)
            self._waiters.pop(id(waiter), None)

    def pass_on(self, waiter: Waiter, ready: frozenset[int] | None = None) -> None:
        """Whether or not it found work, there may be more in its lanes, or someone else who can take it.

        Where it saw which lanes hold work, the empty ones are not passed on: else every task would make all waiters
        look, one after the other (50 transactions a task with 50 of them; now three). News that came during the look
        is not judged by it.
        """
        lanes, tried = waiter.lanes, waiter.tried | {id(waiter)}
        if ready is not None and not waiter.woken.is_set():
            lanes &= ready
        waiter.lanes = waiter.tried = frozenset()
        if lanes:
            self.wake(lanes, tried)

    async def _listen(self) -> None:
        async with self._store.lane_wakes() as wakes:
            async for lanes in wakes:
                self.wake(lanes)

    def wake(self, lanes: frozenset[int], tried: frozenset[int] = frozenset()) -> None:
        """An empty set means that it is not known which lanes: then everyone looks."""
        if not lanes:
            for waiter in self._waiters.values():
                waiter.woken.set()
            return
        for lane in lanes:
            idle = (w for key, w in self._waiters.items() if key not in tried and not w.woken.is_set())
            able = next((w for w in idle if w.may_take(lane)), None)
            if able is not None:
                able.lanes |= {lane}
                able.tried |= tried
                able.woken.set()

    async def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        for waiter in self._waiters.values():
            waiter.woken.set()
