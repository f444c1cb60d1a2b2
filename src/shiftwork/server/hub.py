"""Reads each event of the log once for all subscribers of this server."""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from shiftwork.access.authenticator import ANONYMOUS, Identity
from shiftwork.engine import event_log
from shiftwork.engine.event_log import Part
from shiftwork.server.event_stream import LogEntry
from shiftwork.server.stream_limits import StreamLimit
from shiftwork.store.store import Store

log = logging.getLogger("shiftwork.server")
POLL_SEC = 0.025
"""How often the log is polled for events of other processes, while there are subscribers."""

FOLD_SEC = 0.005
"""Waits this long during bursts, to read events in batches."""

PAGE = 1000
BATCH = 256
"""Rows given to a listener at once: the most that a listener that does not read keeps in memory."""

MAX_KEPT = 4096
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of the newest rows and their messages kept in memory; listeners further behind read the log itself."""

MAX_LISTENERS = 2000
READERS = 2
"""Listeners that may read the log itself at the same time; all others are unaffected."""

AGAIN_SEC = 0.5


Reader = Callable[[int, str | None], Awaitable[tuple[Sequence[LogEntry], int]]]


class Listener:
    """A subscriber, woken when new events may be available."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken = asyncio.Event()


class Hub:
    """The newest rows of the log, of all workspaces, while anyone listens.

    A listener keeps only its own cursor, so a slow one costs no memory and delays no one: if it falls behind the rows
    kept here, it reads the log itself until it has caught up.
    """

    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self.stopping = stopping
        self.stream_limit = StreamLimit("streams", MAX_LISTENERS)
        self.most_kept = MAX_KEPT
        self._store = store
        self._listeners: set[Listener] = set()
        self._nudged = asyncio.Event()
        self._round_robin = asyncio.Semaphore(READERS)
        self._reader: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        self._kept: list[LogEntry] = []
        self._bytes = 0
        self._first: float = math.inf  # all rows after it, up to the last number, are kept
        self._last = 0

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @asynccontextmanager
    async def listen(self, who: Identity = ANONYMOUS) -> AsyncIterator[Listener]:
        """Subscribe to wake-ups for new events and the server's stop."""
        with self.stream_limit.place(who):
            listener = Listener()
            self._listeners.add(listener)
            if self._reader is None:
                self._reader = asyncio.create_task(self._follow())
            try:
                yield listener
            finally:
                self._listeners.discard(listener)
                if not self._listeners:
                    self._rest()

    async def after(self, number: int, workspace: str | None) -> tuple[Sequence[LogEntry], int]:
        """Some rows after a number, and the number to continue from: the same one if there is nothing new."""
        if number >= self._first:
            start = bisect_right(self._kept, number, key=_number)
            found = self._kept[start : start + BATCH]
            more = start + BATCH < len(self._kept)
            return found, found[-1].event.seq if more else max(number, self._last)
        async with self._round_robin:
            return await self._logged(number, workspace, BATCH)

    async def read(self, number: int, workspace: str | None) -> tuple[Sequence[LogEntry], int]:
        """The same, from the log itself."""
        return await self._logged(number, workspace, PAGE)

    async def _logged(self, number: int, workspace: str | None, count: int) -> tuple[Sequence[LogEntry], int]:
        part = await event_log.read(self._store, number, count, workspace)
        return [LogEntry(row) for row in part.rows], part.last

    def nudge(self) -> None:
        """Poll now, because this process has just written events."""
        self._nudged.set()

    def close(self) -> None:
        if self._reader is not None:
            self._rest()

    def _rest(self) -> None:
        assert self._reader is not None
        self._reader.cancel()
        self._reader = None
        self._forget()

    async def _follow(self) -> None:
        ending = asyncio.create_task(self._wake_at_the_end())
        try:
            while True:
                try:
                    await self._read_on()
                except Exception as error:  # noqa: BLE001  # without a reader all listeners would wait forever
                    log.warning("cannot read the event log (%s); retrying", error)
                    await asyncio.sleep(AGAIN_SEC)
        finally:
            ending.cancel()

    async def _read_on(self) -> None:
        if self._first == math.inf:
            self._first = self._last = await event_log.newest(self._store)
            self._wake()  # earlier listeners may have missed the rows just before it
        self._nudged.clear()
        part = await event_log.read(self._store, self._last, PAGE)
        if part.last != self._last:
            self._keep(part)
            self._wake()
            await asyncio.sleep(FOLD_SEC)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SEC):
                await self._nudged.wait()

    def _keep(self, part: Part) -> None:
        entries = [LogEntry(row) for row in part.rows]
        self._kept += entries
        self._bytes += sum(entry.size for entry in entries)
        self._last = part.last
        dropped = max(0, len(self._kept) - self.most_kept)
        self._bytes -= sum(entry.size for entry in self._kept[:dropped])
        while self._bytes > MAX_BYTES:
            self._bytes -= self._kept[dropped].size
            dropped += 1
        if dropped:
            self._first = self._kept[dropped - 1].event.seq
            del self._kept[:dropped]

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.woken.set()

    async def _wake_at_the_end(self) -> None:
        await self.stopping.wait()
        self._wake()


def _number(entry: LogEntry) -> int:
    return entry.event.seq
