"""Handlers for calls of runtimes. In a view whose document has no workspaces, a call applies to every workspace."""

from __future__ import annotations

from typing import Any

from shiftwork.agents.api import Runtimes
from shiftwork.agents.model import RuntimeHeartbeat
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext


@serves(Runtimes.heartbeat)
async def heartbeat(context: RequestContext, body: Any) -> RuntimeHeartbeat:
    runtime_id = context.path["runtime_id"]
    found = [await queue.runtimes.heartbeat(runtime_id, body.holding) for queue in context.queues]
    if len(found) == 1:
        return found[0]
    return RuntimeHeartbeat(
        cancel={token: why for each in found for token, why in each.cancel.items()},
        lost=[token for token in body.holding if all(token in each.lost for each in found)],
        unnamed=[token for each in found for token in each.unnamed],
        slow_down_sec=max((each.slow_down_sec for each in found if each.slow_down_sec), default=None),
        yields={token: why for each in found for token, why in each.yields.items()},
    )


@serves(Runtimes.recover)
async def recover(context: RequestContext) -> Any:
    found = []
    for queue in context.queues:
        context.queue = queue
        found.append(await context.tasks_after(await queue.runtimes.recover(context.path["runtime_id"])))
    return found[0] if len(found) == 1 else {"tasks": [task for each in found for task in each["tasks"]]}
