"""Agents in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.agents.api import Agents, Registration
from shiftwork.agents.model import NewAgent
from shiftwork.model import check
from shiftwork.views.view_adapters import reads, writes


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
