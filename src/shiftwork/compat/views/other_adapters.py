"""Adapters for agents, purges, breakers and people's decisions, in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.agents.api import Agents, Registration
from shiftwork.agents.model import NewAgent
from shiftwork.control.api import Control
from shiftwork.control.model import Purge
from shiftwork.limits.api import Breakers
from shiftwork.model import check
from shiftwork.views.view_adapters import reads, writes
from shiftwork.waits.api import Approvals


@reads(Registration.register)
async def new_agent(request: Any, body: Any) -> dict[str, Any]:
    return {"agent": check.read(request.view.agent_in(body), NewAgent)}


@writes(Registration.register)
@writes(Agents.get)
@writes(Agents.update)
@writes(Agents.heartbeat)
async def agent(request: Any, found: Any) -> Any:
    return request.view.agent_out(msgspec.to_builtins(found))


@writes(Agents.list)
async def agents(request: Any, found: Any) -> Any:
    return {"agents": [request.view.agent_out(msgspec.to_builtins(each)) for each in found]}


@reads(Control.purge)
async def purge(request: Any, body: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(check.read(request.view.purge_in(body), Purge))


@writes(Breakers.list)
async def breakers(request: Any, found: Any) -> Any:
    return request.view.breakers_out([msgspec.to_builtins(each) for each in found])


@writes(Approvals.approve)
@writes(Approvals.reject)
@writes(Approvals.answer)
async def task_after(request: Any, outcome: Any) -> Any:
    """Return the task after the change, which a document's client expects."""
    return request.task(await request.queue.get(outcome.task_id))
