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
        self.looking = False
        """Whether it is looking for work right now: other waiters are woken first."""
        self.lanes: frozenset[int] = frozenset()
        self.ready: frozenset[int] | None = None
        """Lanes that still held work after its last look, if known."""
        self.plenty = False
        """Whether that look found as much as was asked for."""
        self.tried: frozenset[int] = frozenset()
        """The waiters that have already looked at these lanes and found nothing, or enough."""


class ClaimWaiters:
    """Wakes one claim per lane that got work. That claim wakes the next one after its look, or two if there is more
    work: a burst is taken quickly without a thundering herd.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: OrderedDict[int, Waiter] = OrderedDict()
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def waiting(self, may_take: MayTake) -> AsyncIterator[Waiter]:
        if self._closed:  # the listener would never be ended
            raise StoreClosed("this queue was closed")
        waiter = Waiter(may_take)
        self._waiters[id(waiter)] = waiter
        try:
            if self._listener is None or self._listener.done():
                self._listener = asyncio.create_task(self._listen())
                await asyncio.sleep(
                    0
                )  # inside the try: a cancelled waiter must be removed, or it would be woken for nothing
            yield waiter
        finally:
            self._waiters.pop(id(waiter), None)
            self.pass_on(waiter)

    def pass_on(self, waiter: Waiter) -> None:
        """Wake the next waiter: there may be more work in these lanes, or another claim that can take it.

        If the look saw which lanes hold work, empty ones are not passed on. Otherwise every task would make all waiters
        look, one after the other: 50 transactions a task with 50 waiters, instead of three. Work announced during
        the look is always passed on.
        """
        lanes, tried = waiter.lanes, waiter.tried | {id(waiter)}
        if waiter.ready is not None and not waiter.woken.is_set():
            lanes &= waiter.ready
        waiter.lanes = waiter.tried = frozenset()
        for _ in range(2 if waiter.plenty else 1):
            if lanes:
                self.wake(lanes, tried)

    async def _listen(self) -> None:
        async with self._store.lane_wakes() as wakes:
            async for lanes in wakes:
                self.wake(lanes)

    def wake(self, lanes: frozenset[int], tried: frozenset[int] = frozenset()) -> None:
        """An empty set means that the lanes are unknown: then every waiter looks."""
        if not lanes:
            for waiter in self._waiters.values():
                waiter.woken.set()
            return
        for lane in lanes:
            able = self._able(lane, tried, looking=False) or self._able(lane, tried, looking=True)
            if able is not None:
                able.lanes |= {lane}
                able.tried |= tried
                able.woken.set()

    def _able(self, lane: int, tried: frozenset[int], *, looking: bool) -> Waiter | None:
        """The longest-waiting claim that may take the lane and has not been woken for it."""
        idle = (
            w for key, w in self._waiters.items() if w.looking is looking and not w.woken.is_set() and key not in tried
        )
        return next((w for w in idle if w.may_take(lane)), None)

    async def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        for waiter in self._waiters.values():
            waiter.woken.set()
