"""The queue opened for agents, and what goes on beside their calls: heartbeats, and duties on a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shiftwork.client.opening import AnyQueue
from shiftwork.duties.runner import run_for_ever
from shiftwork.mcp.desk import Desk, Options
from shiftwork.queue.queue import Queue
from shiftwork.sinks.courier import Courier


@asynccontextmanager
async def open_desk(queue: AnyQueue, options: Options) -> AsyncIterator[Desk]:
    """A desk over an open queue. When it closes nobody beats any more: the leases decide what becomes of claims."""
    desk = Desk(queue, options)
    beside = [asyncio.create_task(desk.keeper.beat_for_ever())]
    if isinstance(queue, Queue):
        beside.append(asyncio.create_task(run_for_ever(queue.engine)))
        beside.append(asyncio.create_task(Courier(queue.engine).run_for_ever()))
    try:
        yield desk
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await desk.close()
