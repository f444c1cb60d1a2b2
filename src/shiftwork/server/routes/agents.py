"""Agents and the runtimes that host them."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.core.errors import FenceRequired, NotFound
from shiftwork.queue import check
from shiftwork.queue.agents import Agent, NewAgent
from shiftwork.server.ask import Ask, outcomes, plain
from shiftwork.server.door import Doors, ViewQuery
from shiftwork.wire.shapes import (
    AgentBody,
    AgentList,
    Listed,
    Outcomes,
    RuntimeBeatReply,
    RuntimeHeartbeatBody,
)

door = Doors("Agents")


def _shown(ask: Ask, agent: Agent) -> Any:
    return agent if ask.view is None else ask.view.agent_out(plain(agent))


@door("POST /api/agents", "work", body=NewAgent, query=ViewQuery, answer=Agent, status=201, viewed_body=True)
async def register_agent(ask: Ask, body: Any) -> Any:
    """Announce an agent with what it can do and how much it may hold; answers its interval and limits."""
    new = body if ask.view is None else ask.view.agent_in(body)
    return _shown(ask, await ask.queue.register_agent(new))


@door("GET /api/agents", "read", query=ViewQuery, answer=AgentList)
async def list_agents(ask: Ask) -> Any:
    """All agents, with what they hold and have spent."""
    found = await ask.queue.agents()
    return AgentList(found) if ask.view is None else {"agents": [_shown(ask, agent) for agent in found]}


@door("GET /api/agents/{agent_id}", "read", query=ViewQuery, answer=Agent, errors=(NotFound,))
async def get_agent(ask: Ask) -> Any:
    """One agent."""
    return _shown(ask, await ask.queue.agent(ask.path["agent_id"]))


@door("PATCH /api/agents/{agent_id}", "operate", body=AgentBody, query=ViewQuery, answer=Agent, errors=(NotFound,))
async def update_agent(ask: Ask, body: AgentBody) -> Any:
    """Set an agent active, draining, offline or failed, or change what it may still spend."""
    agent_id = ask.path["agent_id"]
    if body.status is not None:
        await ask.queue.set_agent_status(agent_id, body.status)
    if body.budget_remaining_usd is not msgspec.UNSET:
        await ask.queue.set_agent_budget(agent_id, body.budget_remaining_usd)
    return _shown(ask, await ask.queue.agent(agent_id))


@door("POST /api/agents/{agent_id}/heartbeat", "work", query=ViewQuery, answer=Agent, errors=(NotFound,))
async def agent_heartbeat(ask: Ask) -> Any:
    """The agent is there, whether or not it holds anything."""
    agent_id = ask.path["agent_id"]
    await ask.queue.agent(agent_id)
    await ask.queue.agent_heartbeat(agent_id)
    return _shown(ask, await ask.queue.agent(agent_id))


@door("POST /api/agents/{agent_id}/deregister", "work", answer=None, status=204, errors=(NotFound,))
async def deregister_agent(ask: Ask) -> None:
    """The agent's program ends: it is offline and gets no work until it registers again."""
    await ask.queue.deregister_agent(ask.path["agent_id"])


@door("GET /api/runtimes", "read", answer=Listed)
async def list_runtimes(ask: Ask) -> Any:
    """All runtimes, with what they hold and when they were last heard from."""
    return Listed(await ask.queue.runtimes())


@door(
    "POST /api/runtimes/{runtime_id}/heartbeat",
    "work",
    body=RuntimeHeartbeatBody,
    query=ViewQuery,
    answer=RuntimeBeatReply,
    errors=(FenceRequired,),
)
async def runtime_heartbeat(ask: Ask, body: RuntimeHeartbeatBody) -> Any:
    """Extend the lease of all the runtime holds with one call; says which claims to stop."""
    runtime_id = check.name(ask.path["runtime_id"], "runtime_id")
    if len(ask.queues) == 1:
        return RuntimeBeatReply(*await ask.queue.runtime_heartbeat(runtime_id, body.holding))
    told = [await queue.runtime_heartbeat(runtime_id, body.holding) for queue in ask.queues]
    return RuntimeBeatReply(
        cancel={token: why for each in told for token, why in each.cancel.items()},
        lost=[token for token in body.holding if all(token in each.lost for each in told)],
        unnamed=[token for each in told for token in each.unnamed],
        slow_down_sec=max((each.slow_down_sec for each in told if each.slow_down_sec), default=None),
        yields={token: why for each in told for token, why in each.yields.items()},
    )


@door("POST /api/runtime/{runtime_id}/orphans", "work", query=ViewQuery, answer=Outcomes)
async def orphans(ask: Ask) -> Any:
    """A runtime has restarted: what it held before is recovered at once."""
    found = []
    for queue in ask.queues:
        ask.queue = queue
        found.append(await ask.tasks_after(await queue.orphans(ask.path["runtime_id"])))
    return found[0] if len(found) == 1 else {"tasks": [task for each in found for task in each["tasks"]]}


@door("POST /api/runtimes/{runtime_id}/gone", "work", answer=Outcomes)
async def runtime_gone(ask: Ask) -> Any:
    """A runtime is known to have died: what it held fails at once, as after silence."""
    return outcomes(await ask.queue.runtime_gone(ask.path["runtime_id"]))
