"""A store that does not answer, and calls that do not wait for long."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from shiftwork import Queue
from shiftwork.model.ids import parse
from shiftwork.store import postgres
from shiftwork.store.store import Store, Tx


@contextmanager
def given(store: Store, seconds: float) -> Iterator[None]:
    """How long calls may take. Short only for those that are to be given up: a busy machine is slow with all others."""
    before = store.operation_max_sec
    store.operation_max_sec = seconds
    try:
        yield
    finally:
        store.operation_max_sec = before


@contextmanager
def impatient(seconds: float = 0.2) -> Iterator[None]:
    """A server that is away is waited for no longer than this; one that is back has all the time it needs."""
    patience = postgres.RECONNECT_SEC
    postgres.RECONNECT_SEC = seconds
    try:
        yield
    finally:
        postgres.RECONNECT_SEC = patience


@asynccontextmanager
async def stalled(queue: Queue, task_id: str) -> AsyncIterator[None]:
    """While it lasts, no one gets to change this task."""
    if queue.url.startswith("postgres"):
        other = await asyncpg.connect(queue.url)
        async with other.transaction():
            await other.execute("select 1 from tasks where id = $1 for update", parse(task_id))
            yield
        await other.close()
        return
    begun, enough = threading.Event(), threading.Event()

    async def slow(_tx: Tx) -> None:
        begun.set()
        enough.wait()

    busy = asyncio.create_task(queue.engine.store.run(slow))
    await asyncio.to_thread(begun.wait)
    try:
        yield
    finally:
        enough.set()
        await busy
