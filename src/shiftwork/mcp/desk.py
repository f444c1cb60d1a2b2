"""State shared by an MCP server, and its sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from shiftwork.access.scopes import SCOPES, allows
from shiftwork.mcp.keeper import HeartbeatKeeper, Key
from shiftwork.mcp.tool import Role, Tool
from shiftwork.model.errors import Forbidden, InputError, NotFound, ShiftworkError
from shiftwork.operation.interface import AnyQueue

log = logging.getLogger("shiftwork.mcp")
KEEP_SEC = 900.0
MAX_CALL_SEC = 25.0
CLOSE_SEC = 5.0
"""How long claims that no one knows of may take to be released when the server ends; their leases see to the rest."""
SYSTEM = "system"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve agents."""

    role: Role = "all"
    agent_id: str = "mcp"
    """Anyone who claims, where a call does not say who it is."""
    actor: str | None = None
    """Who acts where no claim says it; None for the agent."""
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

    def session(self) -> McpSession:
        """For anyone who is connected alone: the agent that this server was started for."""
        return McpSession(self, self.queue, self.options.agent_id)

    async def introduce(self, queue: AnyQueue, agent_id: str) -> None:
        """An agent that no one knows is registered; one that an operator knows stays as it is."""
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
        """Release a claim that its agent could not be notified of, without anyone waiting for it."""
        task = asyncio.create_task(_release(queue, token))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def close(self) -> None:
        """Wait for what is being released, for a while."""
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


class McpSession:
    """Anyone who calls: the queue as they see it, who they are, and what they may do."""

    def __init__(
        self,
        mcp_server: McpServer,
        queue: AnyQueue,
        agent_id: str,
        *,
        scopes: frozenset[str] = frozenset(SCOPES),
        name: str | None = None,
        owner: str | None = None,
        session: str | None = None,
    ) -> None:
        self.server = mcp_server
        self.agent_id = agent_id
        self._queue = queue
        self._scopes = scopes
        self._actor = f"token:{name}" if name is not None else mcp_server.options.actor or f"agent:{agent_id}"
        self._holder = owner
        self._session = session

    @property
    def working(self) -> AnyQueue:
        """Under a claim its agent speaks for itself."""
        return self._queue.as_caller(SYSTEM)

    @property
    def asking(self) -> AnyQueue:
        return self._queue.as_caller(self._actor)

    def may(self, tool: Tool) -> bool:
        return tool.is_for(self.server.options.role) and allows(self._scopes, tool.scope)

    def require(self, scope: str) -> None:
        if not allows(self._scopes, scope):
            raise Forbidden(f"this needs the scope {scope}", needs=scope, has=sorted(self._scopes))

    def types(self, wanted: Sequence[str] | None) -> list[str] | None:
        """Which tasks to claim: those asked for, of those that this server was started for."""
        allowed = self.server.options.types
        beyond = [name for name in wanted or () if allowed and name not in allowed]
        if beyond:
            raise InputError(
                f"this server does not serve tasks of type {beyond[0]!r}",
                where="types",
                hint=f"It has {', '.join(allowed)}.",
            )
        return list(wanted or allowed) or None

    @property
    def holding(self) -> list[str]:
        return self.server.keeper.held_by(self.agent_id, self._holder)

    def hold(self, token: str, interval_sec: float) -> None:
        self.server.keeper.hold(Key(token, self._holder), self.working, self.agent_id, self._session, interval_sec)

    async def keep(self, token: str) -> None:
        """The claim was named and holds; one that is new here, as after a restart, is kept alive from now on."""
        if not self.server.keeper.name(Key(token, self._holder), self._session):
            task = await self.working.get(token.rpartition(".")[0])
            self.hold(token, task.claim.heartbeat_interval_sec)

    def let_go(self, token: str) -> None:
        self.server.keeper.let_go(Key(token, self._holder))
