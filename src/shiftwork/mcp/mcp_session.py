"""The caller of an MCP server: its queue, its name, and its rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shiftwork.access.model import SCOPES, allows
from shiftwork.mcp.heartbeats import Key
from shiftwork.model.errors import Forbidden, InputError

if TYPE_CHECKING:
    from shiftwork.mcp.mcp_server import McpServer
    from shiftwork.operation.interface import AnyQueue

SYSTEM = "system"


class McpSession:
    """One caller: its queue, its name, and its rights."""

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

    @classmethod
    def single(cls, mcp_server: McpServer) -> McpSession:
        """The session of a server with a single client, which calls as the server's agent."""
        return cls(mcp_server, mcp_server.queue, mcp_server.options.agent_id)

    @property
    def agent_queue(self) -> AnyQueue:
        """The queue for writes under a claim, whose agent is the actor."""
        return self._queue.as_caller(SYSTEM)

    @property
    def queue(self) -> AnyQueue:
        return self._queue.as_caller(self._actor)

    def may(self, scope: str) -> bool:
        return allows(self._scopes, scope)

    def require(self, scope: str) -> None:
        if not self.may(scope):
            raise Forbidden(f"this needs the scope {scope}", needs=scope, has=sorted(self._scopes))

    def types(self, wanted: Sequence[str] | None) -> list[str] | None:
        """The types to claim: those requested, restricted to the server's."""
        allowed = self.server.options.types
        refused = [name for name in wanted or () if allowed and name not in allowed]
        if refused:
            raise InputError(
                f"this server does not serve tasks of type {refused[0]!r}",
                where="types",
                hint=f"It has {', '.join(allowed)}.",
            )
        return list(wanted or allowed) or None

    @property
    def holding(self) -> list[str]:
        return self.server.keeper.held_by(self.agent_id, self._holder)

    def start_heartbeats(self, token: str, interval_sec: float) -> None:
        self.server.keeper.add(Key(token, self._holder), self.agent_queue, self.agent_id, self._session, interval_sec)

    async def keep(self, token: str) -> None:
        """Keep a named, live claim alive; also one unknown here, as after a restart."""
        if not self.server.keeper.touch(Key(token, self._holder), self._session):
            task = await self.agent_queue.get(token.rpartition(".")[0])
            self.start_heartbeats(token, task.claim.heartbeat_interval_sec)

    def stop_heartbeats(self, token: str) -> None:
        self.server.keeper.drop(Key(token, self._holder))
