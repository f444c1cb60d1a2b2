"""Operations on agents and the runtimes that host them: register, drain, take offline, recover after a crash."""

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
        """Take an agent offline because its program is ending; it gets no work until it registers again."""

    @operation("POST /api/agents/{agent_id}/heartbeat", "work", key="never", errors=(NotFound,))
    async def heartbeat(self, agent_id: Name) -> Agent:
        """Report that an agent is alive, whether or not it holds a task."""

    @operation("PATCH /api/agents/{agent_id}", "operate", errors=(NotFound,))
    async def update(
        self,
        agent_id: Name,
        *,
        status: AgentStatus | None = None,
        budget_remaining_usd: Dollars | UnsetType | None = UNSET,
    ) -> Agent:
        """Set an agent active, draining, offline or failed, or change its remaining budget.

        A draining or offline agent finishes the tasks it holds and gets no new ones. A budget of null means no limit;
        omitted values stay unchanged.
        """

    async def set_status(self, agent_id: str, status: AgentStatus) -> Agent:
        """Set an agent active, draining, offline or failed."""
        return await self.update(agent_id, status=status)

    async def set_budget(self, agent_id: str, remaining_usd: float | None) -> Agent:
        """Set an agent's remaining budget; None for no limit."""
        return await self.update(agent_id, budget_remaining_usd=remaining_usd)

    @operation("POST /api/queue/rebalance", "operate", envelope="outcomes", group="Queue")
    async def rebalance(self) -> list[Outcome]:
        """Withdraw claims that loaded agents have not started, for idle ones to take."""

    @operation("GET /api/agents/{agent_id}", "read", errors=(NotFound,))
    async def get(self, agent_id: Name) -> Agent:
        """Return one agent."""

    @operation("GET /api/agents", "read", envelope="agents")
    async def list(self) -> list[Agent]:
        """Return all agents with their claims and costs."""


class Runtimes(Namespace, name="runtimes", group="Agents"):
    """The processes that host agents."""

    @operation("POST /api/runtimes/{runtime_id}/heartbeat", "work", key="never", errors=(FenceRequired,))
    async def heartbeat(
        self, runtime_id: Name, holding: Annotated[Sequence[ClaimToken], Meta(max_length=MAX_HELD)] = ()
    ) -> RuntimeHeartbeat:
        """Extend the leases of everything the runtime holds with one call; returns which claims to stop."""

    @operation("POST /api/runtimes/{runtime_id}/gone", "work", envelope="outcomes")
    async def report_gone(self, runtime_id: Name) -> list[Outcome]:
        """Report that a runtime has died: its claims fail at once, as after silence, and its agents are marked
        failed.
        """

    @operation("POST /api/runtime/{runtime_id}/orphans", "work", envelope="outcomes")
    async def recover(self, runtime_id: Name) -> list[Outcome]:
        """Report that a runtime has restarted: its earlier claims are failed, requeued or kept, as `recover` says."""

    @operation("GET /api/runtimes", "read", envelope="items")
    async def list(self) -> list[Runtime]:
        """Return all runtimes with their claims and when they were last heard from."""


_REGISTER = operation_of(Registration.register)
