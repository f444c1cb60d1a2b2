"""An MCP server over an open queue: its options, the heartbeats it sends for agents, and the maintenance it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from shiftwork.mcp.heartbeats import HeartbeatKeeper
from shiftwork.mcp.roles import Role
from shiftwork.model.errors import NotFound, ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.upkeep import upkeep

log = logging.getLogger("shiftwork.mcp")
KEEP_SEC = 900.0
MAX_CALL_SEC = 25.0
CLOSE_SEC = 5.0
"""How long the server waits at its end for unanswered claims to be released; the leases end the rest."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve agents."""

    role: Role = "all"
    agent_id: str = "mcp"
    """The agent of calls that name none."""
    actor: str | None = None
    """The actor of calls without a claim; None for the agent."""
    types: tuple[str, ...] = ()
    """Which tasks may be claimed; none for all."""
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    keep_sec: float = KEEP_SEC
    longest_call_sec: float = MAX_CALL_SEC


class McpServer:
    """One MCP server over an open queue."""

    def __init__(self, queue: AnyQueue, options: Options) -> None:
        self.queue = queue
        self.options = options
        self.keeper = HeartbeatKeeper(options.keep_sec)
        self._introduced: set[tuple[str, str]] = set()
        self._releasing: set[asyncio.Task[None]] = set()

    async def introduce(self, queue: AnyQueue, agent_id: str) -> None:
        """Register an unknown agent; a known one stays as it is."""
        known = (queue.workspace, agent_id)
        if known in self._introduced:
            return
        try:
            await queue.agents.get(agent_id)
        except NotFound:
            offers = self.options
            await queue.agents.register(
                id=agent_id,
                types=list(offers.types) or None,
                capabilities=list(offers.capabilities),
                models_available=list(offers.models),
            )
        self._introduced.add(known)

    def release(self, queue: AnyQueue, token: str) -> None:
        """Release in the background a claim whose answer did not reach its agent."""
        task = asyncio.create_task(_release(queue, token))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def close(self) -> None:
        """Wait a while for claims being released."""
        left = set(self._releasing)
        if left:
            await asyncio.wait(left, timeout=CLOSE_SEC)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _release(queue: AnyQueue, token: str) -> None:
    try:
        await queue.batch.release([token], "its agent could not be reached")
    except ShiftworkError as error:
        log.warning("claim %s could not be released; it ends with its lease: %s", token, error)


@asynccontextmanager
async def open_context(queue: AnyQueue, options: Options) -> AsyncIterator[McpServer]:
    """A server over an open queue. When it closes, heartbeats stop, and claims end with their leases."""
    mcp_server = McpServer(queue, options)
    background = [asyncio.create_task(each) for each in (mcp_server.keeper.beat_forever(), *upkeep(queue))]
    try:
        yield mcp_server
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await mcp_server.close()
