"""What a whole MCP server shares, and what one call of it knows about its caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from shiftwork.client.opening import AnyQueue
from shiftwork.core.errors import Forbidden, InputError, NotFound, ShiftworkError
from shiftwork.core.scopes import SCOPES, allows
from shiftwork.mcp.keeper import Keeper, Key
from shiftwork.mcp.tool import Role, Tool

log = logging.getLogger("shiftwork.mcp")
KEEP_SEC = 900.0
LONGEST_CALL_SEC = 25.0
CLOSE_SEC = 5.0
"""How long claims that nobody knows of may take to be given back when the server ends; their leases see to the rest."""
SYSTEM = "system"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve agents."""

    role: Role = "all"
    agent_id: str = "mcp"
    """Whoever claims, where a call does not say who it is."""
    actor: str | None = None
    """Who acts where no claim says it; None for the agent."""
    types: tuple[str, ...] = ()
    """Which tasks may be claimed; none for all."""
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    keep_sec: float = KEEP_SEC
    longest_call_sec: float = LONGEST_CALL_SEC


class Desk:
    """One MCP server over an open queue."""

    def __init__(self, queue: AnyQueue, options: Options) -> None:
        self.queue = queue
        self.options = options
        self.keeper = Keeper(options.keep_sec)
        self._introduced: set[tuple[str, str]] = set()
        self._giving_back: set[asyncio.Task[None]] = set()

    def seat(self) -> Seat:
        """For whoever is connected alone: the agent that this server was started for."""
        return Seat(self, self.queue, self.options.agent_id)

    async def introduce(self, queue: AnyQueue, agent_id: str) -> None:
        """An agent that nobody knows is registered; one that an operator knows stays as it is."""
        known = (queue.workspace, agent_id)
        if known in self._introduced:
            return
        try:
            await queue.agent(agent_id)
        except NotFound:
            offers = self.options
            await queue.register_agent(
                id=agent_id,
                types=list(offers.types) or None,
                capabilities=list(offers.capabilities),
                models_available=list(offers.models),
            )
        self._introduced.add(known)

    def give_back(self, queue: AnyQueue, token: str) -> None:
        """Release a claim that its agent could not be told of, without anybody waiting for it."""
        task = asyncio.create_task(_give_back(queue, token))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def close(self) -> None:
        """Wait for what is being given back, for a while."""
        left = set(self._giving_back)
        if left:
            await asyncio.wait(left, timeout=CLOSE_SEC)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _give_back(queue: AnyQueue, token: str) -> None:
    try:
        await queue.release_many([token], "its agent could not be told of it")
    except ShiftworkError as error:
        log.warning("claim %s could not be given back and is left to its lease: %s", token, error)


class Seat:
    """Whoever calls: the queue as they see it, who they are, and what they may do."""

    def __init__(
        self,
        desk: Desk,
        queue: AnyQueue,
        agent_id: str,
        *,
        scopes: frozenset[str] = frozenset(SCOPES),
        name: str | None = None,
        holder: str | None = None,
        session: str | None = None,
    ) -> None:
        self.desk = desk
        self.agent_id = agent_id
        self._queue = queue
        self._scopes = scopes
        self._actor = f"token:{name}" if name is not None else desk.options.actor or f"agent:{agent_id}"
        self._holder = holder
        self._session = session

    @property
    def working(self) -> AnyQueue:
        """Under a claim its agent speaks for itself."""
        return self._queue.as_caller(SYSTEM)

    @property
    def asking(self) -> AnyQueue:
        return self._queue.as_caller(self._actor)

    def may(self, tool: Tool) -> bool:
        return tool.is_for(self.desk.options.role) and allows(self._scopes, tool.scope)

    def require(self, scope: str) -> None:
        if not allows(self._scopes, scope):
            raise Forbidden(f"this needs the scope {scope}", needs=scope, has=sorted(self._scopes))

    def types(self, wanted: Sequence[str] | None) -> list[str] | None:
        """Which tasks to claim: those asked for, of those that this server was started for."""
        allowed = self.desk.options.types
        beyond = [name for name in wanted or () if allowed and name not in allowed]
        if beyond:
            raise InputError(
                f"this server hands out no tasks of type {beyond[0]!r}",
                where="types",
                mend=f"It has {', '.join(allowed)}.",
            )
        return list(wanted or allowed) or None

    # -- claims ----------------------------------------------------------------------------------------------------

    @property
    def holding(self) -> list[str]:
        return self.desk.keeper.held_by(self.agent_id, self._holder)

    def hold(self, token: str, interval_sec: float) -> None:
        self.desk.keeper.hold(Key(token, self._holder), self.working, self.agent_id, self._session, interval_sec)

    async def keep(self, token: str) -> None:
        """The claim was named and holds; one that is new here, as after a restart, is kept alive from now on."""
        if not self.desk.keeper.name(Key(token, self._holder), self._session):
            task = await self.working.get(token.rpartition(".")[0])
            self.hold(token, task.claim.heartbeat_interval_sec)

    def let_go(self, token: str) -> None:
        self.desk.keeper.let_go(Key(token, self._holder))
