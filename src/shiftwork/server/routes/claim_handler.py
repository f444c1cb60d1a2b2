"""Claims over HTTP: waiting, callers that disconnect, repeats, and views of several workspaces."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from shiftwork.engine.assignment import Assignment, ClaimResult, Input
from shiftwork.engine.claims_api import Claims
from shiftwork.engine.idempotency import Repeated
from shiftwork.model.task import Task
from shiftwork.operation.declare import operation_of
from shiftwork.queue import Queue
from shiftwork.server import workspace_lookup
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext, plain

_REQUEST = operation_of(Claims.request)


@serves(Claims.request)
async def claim(context: RequestContext, body: Any) -> Any:
    values = msgspec.structs.asdict(body)
    request = context.queue.caller.idempotency
    if request is not None:  # identifies its claims for a repeat
        context.queue = context.queue.for_caller(context.queue.caller._replace(request_id=request.key))
    try:
        if body.wait:
            with context.state.waits.place(context.who):
                result = await context.unless_disconnected(_claim(context, values)) or ClaimResult([])
        else:  # not watched: the connection is checked once, at the end
            result = await _claim(context, values)
            context.has_disconnected = bool(result.assignments) and context.is_disconnected()
    except Repeated:
        result = await _made_before(context, body.agent_id or body.runtime_id or "")
    if result.assignments and context.has_disconnected:
        await _release(context, result)
    return result if context.view is None else _in_view(context, result)


def _claim(context: RequestContext, values: dict[str, Any]) -> Coroutine[Any, Any, ClaimResult]:
    return _claim_anywhere(context, values) if context.spans else context.queue.executor.perform(_REQUEST, values)


async def _claim_anywhere(context: RequestContext, values: dict[str, Any]) -> ClaimResult:
    """Claim from the first workspace with work; the rest of the call uses that one."""

    async def look(queue: Queue) -> ClaimResult:
        context.queue = queue
        found: ClaimResult = await queue.executor.perform(_REQUEST, {**values, "wait": 0})
        return found

    context.queue, result = await workspace_lookup.claim(context.queue, context.state.hub, values["wait"], look)
    return result


async def _release(context: RequestContext, result: ClaimResult) -> None:
    """Release the claim of a caller that disconnected meanwhile: no one would work on it."""
    queue = context.queue.for_caller(context.queue.caller._replace(idempotency=None))
    tokens = [assignment.token for assignment in result.assignments]
    await queue.batch.release(tokens, "the caller disconnected")


async def _made_before(context: RequestContext, claimed_by: str) -> ClaimResult:
    """The claims already made by the same request that its agent still holds."""
    tasks = await context.queue.claims.made_by_request(claimed_by, context.queue.caller.request_id or "")
    return ClaimResult([Assignment.of_task(task, await _inputs(context, task)) for task in tasks])


async def _inputs(context: RequestContext, task: Task) -> list[Input]:
    refers = bool(task.spec and task.spec.get("context_refs"))
    return await context.queue.artifacts.inputs(task.id) if refers else []


def _in_view(context: RequestContext, result: ClaimResult) -> dict[str, Any]:
    view = context.view
    assert view is not None
    return view.assignments_out(
        [
            {**view.assignment_out(plain(each.task())), "token": each.token, "inputs": each.inputs}
            for each in result.assignments
        ]
    )
