"""Claims over HTTP: places for those that wait, callers that hang up, repeats, and views of several workspaces."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec

from shiftwork.artifacts.model import Input
from shiftwork.engine.assignment import Assignment, ClaimResult
from shiftwork.engine.claims_api import Claims
from shiftwork.engine.idempotency import Repeated
from shiftwork.model.task import Task
from shiftwork.operation.declare import operation_of
from shiftwork.queue import Queue
from shiftwork.server import spanning
from shiftwork.server.ask import Ask, plain
from shiftwork.server.handlers import serves

_REQUEST = operation_of(Claims.request)


@serves(Claims.request)
async def claim(ask: Ask, body: Any) -> Any:
    values = msgspec.structs.asdict(body)
    request = ask.queue.caller.idempotency
    if request is not None:  # by which its claims are found again
        ask.queue = ask.queue.speaking_as(ask.queue.caller._replace(request_id=request.key))
    try:
        with ask.house.waits.place(ask.who) if body.wait else nullcontext():
            work = _claim_anywhere(ask, values) if ask.spans else ask.queue.executor.perform(_REQUEST, values)
            result: ClaimResult = await ask.while_wanted(work) or ClaimResult([])
    except Repeated:
        result = await _made_before(ask, body.agent_id or body.runtime_id or "")
    if result.assignments and ask.has_hung_up:
        await _release(ask, result)
    return result if ask.view is None else _in_view(ask, result)


async def _claim_anywhere(ask: Ask, values: dict[str, Any]) -> ClaimResult:
    """From the first workspace that has work; the rest of the call is about that one."""

    async def look(queue: Queue) -> ClaimResult:
        ask.queue = queue
        found: ClaimResult = await queue.executor.perform(_REQUEST, {**values, "wait": 0})
        return found

    ask.queue, result = await spanning.claim(ask.queue, ask.house.hub, values["wait"], look)
    return result


async def _release(ask: Ask, result: ClaimResult) -> None:
    """The caller has gone while its claim was made: no one would work on it."""
    queue = ask.queue.speaking_as(ask.queue.caller._replace(idempotency=None))
    tokens = [assignment.token for assignment in result.assignments]
    await queue.batch.release(tokens, "the caller disconnected")


async def _made_before(ask: Ask, claimed_by: str) -> ClaimResult:
    """Of the claims that the same request has made already, those that its agent still holds."""
    tasks = await ask.queue.claims.made_by_request(claimed_by, ask.queue.caller.request_id or "")
    return ClaimResult([Assignment.of_task(task, await _inputs(ask, task)) for task in tasks])


async def _inputs(ask: Ask, task: Task) -> list[Input]:
    refers = bool(task.spec and task.spec.get("context_refs"))
    return await ask.queue.artifacts.inputs(task.id) if refers else []


def _in_view(ask: Ask, result: ClaimResult) -> dict[str, Any]:
    view = ask.view
    assert view is not None
    return view.assignments_out(
        [
            {**view.assignment_out(plain(each.task())), "token": each.token, "inputs": each.inputs}
            for each in result.assignments
        ]
    )
