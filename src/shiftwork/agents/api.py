"""Agents and the runtimes that host them: register, drain, go offline, come back after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Unpack

from msgspec import UNSET, Meta, UnsetType

from shiftwork.agents.model import Agent, AgentFields, AgentStatus, NewAgent, Runtime, RuntimeHeartbeat
from shiftwork.model import check
from shiftwork.model.errors import FenceRequired, NotFound
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Dollars, Name
from shiftwork.operation.declare import Namespace, operation, operation_of
from shiftwork.operation.parameters import ClaimToken

MAX_HELD = 10_000
"""Claims that one heartbeat of a runtime may name."""


class Registration(Namespace, name="agents"):
    """What `agents.register` sends."""

    @operation("POST /api/agents", "work", body="agent", status=201, key="never")
    async def register(self, agent: NewAgent) -> Agent:
        """Register an agent with what it can do and how much it may hold; answers its interval and limits.

        Registering again changes what was said before and makes the agent active.
        """


class Agents(Namespace, name="agents"):
    """The agents of a workspace."""

    async def register(self, agent: NewAgent | Mapping[str, Any] | None = None, **fields: Unpack[AgentFields]) -> Agent:
        """Register an agent with what it can do and how much it may hold; answers its interval and limits.

        Registering again changes what was said before and makes the agent active.
        """
        if agent is not None and fields:
            raise TypeError("give the agent or its fields, not both")
        new = check.read(fields if agent is None else agent, NewAgent, "agent")
        registered: Agent = await self._executor.perform(_REGISTER, {"agent": new})
        return registered

    @operation("POST /api/agents/{agent_id}/deregister", "work", status=204, errors=(NotFound,))
    async def deregister(self, agent_id: Name) -> None:
        """Take an agent offline because its program ends; it gets no work until it registers again."""

    @operation("POST /api/agents/{agent_id}/heartbeat", "work", key="never", errors=(NotFound,))
    async def heartbeat(self, agent_id: Name) -> Agent:
        """Say that an agent is alive, whether or not it holds anything."""

    @operation("PATCH /api/agents/{agent_id}", "operate", errors=(NotFound,))
    async def update(
        self,
        agent_id: Name,
        *,
        status: AgentStatus | None = None,
        budget_remaining_usd: Dollars | UnsetType | None = UNSET,
    ) -> Agent:
        """Set an agent active, draining, offline or failed, or change what it may still spend.

        A draining or offline agent finishes what it holds and gets nothing new. A budget of null has no limit; what is
        not given stays as it is.
        """

    async def set_status(self, agent_id: str, status: AgentStatus) -> Agent:
        """Set an agent active, draining, offline or failed."""
        return await self.update(agent_id, status=status)

    async def set_budget(self, agent_id: str, remaining_usd: float | None) -> Agent:
        """Set what an agent may still spend; None for no limit."""
        return await self.update(agent_id, budget_remaining_usd=remaining_usd)

    @operation("POST /api/queue/rebalance", "operate", envelope="outcomes", group="Queue")
    async def rebalance(self) -> list[Outcome]:
        """Withdraw claims that loaded agents have not started, for idle ones to take."""

    @operation("GET /api/agents/{agent_id}", "read", errors=(NotFound,))
    async def get(self, agent_id: Name) -> Agent:
        """Return one agent."""

    @operation("GET /api/agents", "read", envelope="agents")
    async def list(self) -> list[Agent]:
        """Return all agents with what they hold and have spent."""


class Runtimes(Namespace, name="runtimes", group="Agents"):
    """The processes that host agents."""

    @operation("POST /api/runtimes/{runtime_id}/heartbeat", "work", key="never", errors=(FenceRequired,))
    async def heartbeat(
        self, runtime_id: Name, holding: Annotated[Sequence[ClaimToken], Meta(max_length=MAX_HELD)] = ()
    ) -> RuntimeHeartbeat:
        """Extend the lease of everything the runtime holds with one call; says which claims to stop."""

    @operation("POST /api/runtimes/{runtime_id}/gone", "work", envelope="outcomes")
    async def report_gone(self, runtime_id: Name) -> list[Outcome]:
        """Report that a runtime has died: what it held fails at once, as after silence, and its agents are failed."""

    @operation("POST /api/runtime/{runtime_id}/orphans", "work", envelope="outcomes")
    async def recover(self, runtime_id: Name) -> list[Outcome]:
        """Report that a runtime has restarted: what it held before is failed, requeued or kept, as `recover` says."""

    @operation("GET /api/runtimes", "read", envelope="items")
    async def list(self) -> list[Runtime]:
        """Return all runtimes with what they hold and when they were last heard from."""


_REGISTER = operation_of(Registration.register)
