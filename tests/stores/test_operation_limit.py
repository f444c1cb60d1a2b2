"""No call lasts longer than the setting says: it ends with an error, and nothing has changed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.core.errors import OperationTimeout
from shiftwork.core.ids import parse
from shiftwork.store.store import Tx


@asynccontextmanager
async def stalled(queue: Queue, task_id: str) -> AsyncIterator[None]:
    """While it lasts, nobody gets to change this task."""
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
    yield
    enough.set()
    await busy


@pytest.mark.requirement("C-224")
async def test_a_stalled_call_is_given_up_with_nothing_changed(store_url: str) -> None:
    async with await Queue.open(store_url) as queue:
        assert queue.engine.store.operation_max_sec == 30
        await queue.set_setting("operation_max_sec", 1)
    async with await Queue.open(store_url) as queue:
        made = await queue.submit(type="code")
        async with stalled(queue, made.id):
            with pytest.raises(OperationTimeout):
                await queue.cancel(made.id)
        assert (await queue.get(made.id)).status == "ready"
        assert (await queue.cancel(made.id)).status == "cancelled"
