"""A store for a database that did not answer when the process started: opens it as soon as it does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from shiftwork.model.errors import ShiftworkError, StoreUnavailable
from shiftwork.model.text import without_secrets
from shiftwork.store.stalls import StallDetector
from shiftwork.store.store import Clock, Store, Verb

T = TypeVar("T")
log = logging.getLogger("shiftwork.databases")

AGAIN_SEC = 1.0
"""The pause between attempts to open the database."""


class LateStore:
    """Refuses every call until the database is open, then forwards all calls to its store."""

    one_writer = False

    def __init__(self, name: str, url: str, opening: Callable[[], Awaitable[Store]], clock: Clock | None) -> None:
        self.url = url
        self._name = name
        self._opening = opening
        self._clock = clock or time.time
        self._operation_max_sec = 30.0
        self._store: Any = None
        self._opened = asyncio.Event()
        self._why = ""
        self.stall_detector = StallDetector(self.now, watches_clock=clock is None)
        self._trying = asyncio.create_task(self._open())

    async def _open(self) -> None:
        while self._store is None:
            try:
                store: Any = await self._opening()
            except Exception as error:  # noqa: BLE001  # other databases are served, and this one is retried
                self._note(error)
                await asyncio.sleep(AGAIN_SEC)
            else:
                self._begin(store)

    def _note(self, error: Exception) -> None:
        """Log why the database is not open, once per reason."""
        why = without_secrets(error.what if isinstance(error, ShiftworkError) else str(error))
        if why != self._why:
            log.warning("the database %s of the map is not open: %s", self._name, why)
        self._why = why

    def _begin(self, store: Any) -> None:
        for stall in store.stall_detector.stalls:
            self.stall_detector.forgive(stall)
        store.stall_detector = self.stall_detector  # the one that maintenance has used so far
        store.operation_max_sec = self._operation_max_sec
        self._store = store
        self._opened.set()
        log.warning("the database %s of the map is now open", self._name)

    @property
    def _inner(self) -> Any:
        if self._store is None:
            raise StoreUnavailable(self._why or "the database has not answered since this process started")
        return self._store

    def __getattr__(self, name: str) -> Any:
        """Forward attributes that only this kind of store has, such as its schema and address."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def operation_max_sec(self) -> float:
        return self._operation_max_sec

    @operation_max_sec.setter
    def operation_max_sec(self, seconds: float) -> None:
        self._operation_max_sec = seconds
        if self._store is not None:
            self._store.operation_max_sec = seconds

    @property
    def refusal(self) -> ShiftworkError | None:
        found: ShiftworkError | None = None if self._store is None else self._store.refusal
        return found

    @refusal.setter
    def refusal(self, error: ShiftworkError | None) -> None:
        if self._store is not None:
            self._store.refusal = error

    async def run(self, verb: Verb[T], /) -> T:
        answer: T = await self._inner.run(verb)
        return answer

    async def run_on(self, connection: Any, verb: Verb[T], /) -> T:
        answer: T = await self._inner.run_on(connection, verb)
        return answer

    async def read(self, verb: Verb[T], /) -> T:
        answer: T = await self._inner.read(verb)
        return answer

    async def read_in_turn(self, verb: Verb[T], /) -> T:
        answer: T = await self._inner.read_in_turn(verb)
        return answer

    def now(self) -> float:
        now: float = self._clock() if self._store is None else self._store.now()
        return now

    @property
    def announces_ends(self) -> bool:
        return self._store is not None and bool(self._store.announces_ends)

    @asynccontextmanager
    async def lane_wakes(self) -> AsyncIterator[AsyncIterator[frozenset[int]]]:
        stream = self._when_open("lane_wakes")
        try:
            yield stream
        finally:
            await stream.aclose()

    @asynccontextmanager
    async def endings(self) -> AsyncIterator[AsyncIterator[frozenset[str]]]:
        stream = self._when_open("endings")
        try:
            yield stream
        finally:
            await stream.aclose()

    async def _when_open(self, what: str) -> Any:
        """Yield nothing until the store is open; then an empty set, which means everything, and its announcements."""
        await self._opened.wait()
        async with getattr(self._inner, what)() as stream:
            yield frozenset()
            async for each in stream:
                yield each

    async def settle_events(self) -> None:
        await self._inner.settle_events()

    async def close(self) -> None:
        self._trying.cancel()
        await asyncio.gather(self._trying, return_exceptions=True)
        if self._store is not None:
            await self._store.close()
