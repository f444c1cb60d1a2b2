"""What tasks wait for besides other tasks, and what people and programs say to them."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import (
    CircularDependency,
    InputError,
    NotFound,
    RevisionChanged,
    UnknownDependency,
    VersionConflict,
    WrongState,
)
from shiftwork.queue.waits.approvals import Kind
from shiftwork.queue.waits.waits import Signalled
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PageSize, Query, ViewQuery
from shiftwork.server.routes.working import HOLDING
from shiftwork.wire.shapes import OutcomeReply
from shiftwork.wire.waiting import AnswerBody, AskedList, DecisionBody, SignalBody, WaitBody, WaitReply

door = Doors("Waiting and asking")
DECIDING = (NotFound, WrongState, RevisionChanged, VersionConflict)


@door(
    "POST /api/tasks/{task_id}/wait",
    "work",
    body=WaitBody,
    query=ViewQuery,
    answer=WaitReply,
    errors=(*HOLDING, CircularDependency, UnknownDependency),
)
async def wait(ask: Ask, body: WaitBody) -> Any:
    """Give the slot back until tasks are done, a time has come, a signal was sent or a person has answered.

    The task then comes back to an agent that can take it. The same call answers what came of a wait that has a name.
    Where all the tasks are done the slot is kept, and `status` is `running`.
    """
    token = await ask.token(body)
    if body.tasks is not None and body.name is None:
        return WaitReply(str(await ask.queue.wait_for(token, body.tasks)))
    if body.tasks is not None or body.name is None:
        raise InputError("a wait is for tasks, or has a name", where="name")
    found = await ask.queue.wait(
        token,
        body.name,
        until=body.until,
        signal=body.signal,
        question=body.question,
        schema=body.schema,
        timeout_sec=body.timeout_sec,
    )
    return WaitReply("pending" if found.status == "open" else "running", found)


@door("POST /api/signals", "submit", body=SignalBody, answer=Signalled, status=201, errors=(NotFound, WrongState))
async def signal(ask: Ask, body: SignalBody) -> Any:
    """Send a signal to all tasks that wait for it, or to one; it is kept a day for those that wait later."""
    return await ask.queue.signal(body.name, body.data, task=body.task)


class AskedQuery(Query):
    """Which of them."""

    kind: Kind | None = None
    type: str | None = None
    task: str | None = None
    after: str | None = None
    limit: PageSize = 100


@door("GET /api/approvals", "read", query=AskedQuery, answer=AskedList, errors=(NotFound,))
async def approvals(ask: Ask) -> Any:
    """What waits for a person, by task: approvals that guards ask for, and questions of agents."""
    query = ask.query
    page = {"after": query.after, "limit": query.limit}
    return AskedList(await ask.queue.approvals(kind=query.kind, type=query.type, task=query.task, **page))


@door(
    "POST /api/tasks/{task_id}/answer",
    "operate",
    body=AnswerBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=(NotFound, WrongState),
)
async def answer(ask: Ask, body: AnswerBody) -> Any:
    """Answer the question that a task asks; it must be what the question's schema says."""
    told = await ask.queue.answer(ask.path["task_id"], body.value)
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/approve",
    "operate",
    body=DecisionBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=DECIDING,
)
async def approve(ask: Ask, body: DecisionBody) -> Any:
    """Let a task run that a guard has stopped; with `revision` only if the work is still what was looked at."""
    said = {"revision": body.revision, "note": body.note}
    told = await ask.queue.approve(ask.path["task_id"], **said, version=body.version)
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/reject",
    "operate",
    body=DecisionBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=DECIDING,
)
async def reject(ask: Ask, body: DecisionBody) -> Any:
    """Cancel a task that a guard has stopped."""
    said = {"revision": body.revision, "note": body.note}
    told = await ask.queue.reject(ask.path["task_id"], **said, version=body.version)
    return await ask.task_after(told)
