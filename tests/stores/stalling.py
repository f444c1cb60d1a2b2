"""A store that does not answer, and calls with short time limits."""

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
    """Set the time limit of calls. Short only for calls that must time out, since a busy machine slows the others."""
    before = store.operation_max_sec
    store.operation_max_sec = seconds
    try:
        yield
    finally:
        store.operation_max_sec = before


@contextmanager
def impatient(seconds: float = 0.2) -> Iterator[None]:
    """Limit the wait for an unavailable server; calls to an available one have enough time."""
    patience = postgres.RECONNECT_SEC
    postgres.RECONNECT_SEC = seconds
    try:
        yield
    finally:
        postgres.RECONNECT_SEC = patience


@asynccontextmanager
async def stalled(queue: Queue, task_id: str) -> AsyncIterator[None]:
    """Block all changes of this task inside the block."""
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
