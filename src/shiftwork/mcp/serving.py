"""The queue opened for agents, and what continues beside their calls: heartbeats, and maintenance jobs on a
database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shiftwork.mcp.desk import McpServer, Options
from shiftwork.operation.interface import AnyQueue
from shiftwork.upkeep import upkeep


@asynccontextmanager
async def open_context(queue: AnyQueue, options: Options) -> AsyncIterator[McpServer]:
    """A desk over an open queue. When it closes no one beats any more: the leases decide what becomes of claims."""
    mcp_server = McpServer(queue, options)
    background = [asyncio.create_task(each) for each in (mcp_server.keeper.beat_forever(), *upkeep(queue))]
    try:
        yield mcp_server
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await mcp_server.close()
