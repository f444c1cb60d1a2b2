"""Lets callers wait for the end of a task or DAG: one subscription serves all waiters of a process."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

from shiftwork.model.errors import ShiftworkError, StoreClosed
from shiftwork.store.store import Store, Tx

log = logging.getLogger("shiftwork.engine")
Kind = Literal["task", "dag"]
_STATEMENTS: dict[Kind, str] = {"task": "ended_lineages", "dag": "ended_dags"}

LISTEN_SEC = 3600.0
"""How long completed tasks are announced to a process after it last registered a waiter."""

FIRST_LOOKS_SEC = (1.0, 5.0, 15.0)
"""When to look for completions that were in progress as this process began to listen: they may not be announced."""

REPAIR_SEC = 30.0
"""An announcement can be lost with its connection: this often, one query for all waiters makes up for it."""

POLL_SEC = 0.5
"""The same if other processes announce nothing."""

FOLD_SEC = 0.05
"""If it is unknown what ended, all awaited ids are looked up: at most this often."""


class ResultWaiters:
    """The waiters, by the root of a lineage of tasks or by the id of a DAG."""

    def __init__(self, store: Store) -> None:
        self.parked = 0
        """The number of callers that have looked and are waiting."""
        self._store = store
        self._id = secrets.token_hex(8)
        self._waiters: dict[Kind, dict[str, set[asyncio.Event]]] = {"task": {}, "dag": {}}
        self._tasks: list[asyncio.Task[None]] = []
        self._begun: asyncio.Task[None] | None = None
        self._registered = False
        self._closed = False

    @asynccontextmanager
    async def waiting(self, kind: Kind, key: str) -> AsyncIterator[asyncio.Event]:
        """Set the event when this ends. A query made inside the context misses no later end."""
        if self._closed:
            raise StoreClosed("this queue was closed")
        woken = asyncio.Event()
        waiters = self._waiters[kind]
        waiters.setdefault(key, set()).add(woken)
        try:
            await self._begin()
            yield woken
        finally:
            waiters[key].discard(woken)
            if not waiters[key]:
                del waiters[key]

    async def park(self, woken: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set or the time is up."""
        self.parked += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if seconds == math.inf else seconds):
                    await woken.wait()
        finally:
            self.parked -= 1

    async def _begin(self) -> None:
        """Start the shared subscription; concurrent callers wait until it has started."""
        if self._begun is None:
            self._begun = asyncio.create_task(self._start())
        await asyncio.shield(self._begun)

    async def _start(self) -> None:
        subscribed = asyncio.Event()
        self._tasks = [asyncio.create_task(self._listen(subscribed)), asyncio.create_task(self._repair())]
        await subscribed.wait()
        await self._register()

    async def _register(self) -> None:
        """Register this process, so that completed tasks are announced to it."""
        try:
            await self._store.run(self._say)
            self._registered = True
        except ShiftworkError as error:  # the store accepts no writes now
            log.info("completed tasks are not announced to this process (%s); polling instead", error)

    async def _say(self, tx: Tx) -> None:
        await tx.run("stop_listening_for_results", id=self._id, now=tx.now)
        await tx.run("listen_for_results", id=self._id, until=tx.now + LISTEN_SEC)

    async def _listen(self, subscribed: asyncio.Event) -> None:
        async with self._store.endings() as endings:
            subscribed.set()
            async for ended in endings:
                if ended:
                    self._wake(ended)
                else:
                    await self._look()
                    await asyncio.sleep(FOLD_SEC)

    async def _repair(self) -> None:
        """Occasionally look up all awaited ids at once, and renew the registration."""
        loop = asyncio.get_running_loop()
        renewed, looks = loop.time(), iter(FIRST_LOOKS_SEC)
        while True:
            await asyncio.sleep(next(looks, REPAIR_SEC) if self._store.announces_ends else POLL_SEC)
            await self._look()
            if loop.time() - renewed > LISTEN_SEC / 2 or not self._registered:
                renewed = loop.time()
                await self._register()

    async def _look(self) -> None:
        """Wake the waiters of everything that has ended, announced or not."""
        for kind, waiters in self._waiters.items():
            if waiters:
                verb = functools.partial(_ended, _STATEMENTS[kind], sorted(waiters))
                with suppress(ShiftworkError):  # it will be looked up again
                    self._wake(await self._store.read(verb))

    def _wake(self, ended: frozenset[str]) -> None:
        for waiters in self._waiters.values():
            for key in ended & waiters.keys():
                for woken in waiters[key]:
                    woken.set()

    async def close(self) -> None:
        """Wake everyone: their next look says that the queue was closed."""
        self._closed = True
        for task in (*self._tasks, *([self._begun] if self._begun else [])):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._registered:
            with suppress(ShiftworkError):
                await self._store.run(lambda tx: tx.run("stop_listening_for_results", id=self._id, now=tx.now))
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiters to look again."""
        for waiters in self._waiters.values():
            self._wake(frozenset(waiters))


async def _ended(statement: str, keys: Sequence[str], tx: Tx) -> frozenset[str]:
    rows = await tx.all(statement, items=[(key,) for key in keys])
    return frozenset(row["id"] for row in rows)
