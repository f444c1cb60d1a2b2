"""Finds the workspace for a document whose calls do not name one.

Aegis names a workspace when a task is created; every other call has only the id of a task, an issue or a runtime. For a
caller without a token, its view does the same: a body may name the workspace, an id leads to its own, and a call of a
runtime applies to all of them. A token belongs to one workspace, so nothing here applies to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shiftwork.engine.engine import IdempotentRequest
from shiftwork.model import ids
from shiftwork.model.errors import InputError, ShiftworkError, StoreUnavailable
from shiftwork.model.task import Page, Task

if TYPE_CHECKING:
    from shiftwork.access.authenticator import Identity
    from shiftwork.engine.assignment import ClaimResult
    from shiftwork.queue import Queue
    from shiftwork.server.hub import Hub
    from shiftwork.store.store import Tx
    from shiftwork.views.view import View

T = TypeVar("T")
FIELD = "workspace_id"
LOOK_AGAIN_SEC = 5.0
"""How long a waiting claim relies on being woken before it polls again."""


def spans(view: View | None, who: Identity, named: str | None) -> bool:
    """Whether a call that names this workspace, or none, applies to all of them."""
    return view is not None and view.names_workspaces and named is None and who.workspace is None


def in_body(raw: bytes) -> str | None:
    """The workspace that a body names; a call creates tasks in one workspace only."""
    if FIELD.encode() not in raw:
        return None
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None  # reading the body raises the error
    each = body.get("tasks", [body]) if isinstance(body, dict) else body
    items = [item for item in each if isinstance(item, dict)] if isinstance(each, list) else []
    named = {item[FIELD] for item in items if isinstance(item.get(FIELD), str)}
    if len(named) > 1:
        raise InputError("one call can only create tasks in one workspace", where=FIELD)
    return next(iter(named), None)


async def of_path(queue: Queue, path: dict[str, str]) -> str | None:
    """The workspace of the task or issue in the path, if it exists."""
    uuid, issue = ids.parse(path.get("task_id", "")), path.get("issue_id")
    for each in queue.databases():
        found = None
        if uuid is not None:
            found = await each.engine.store.read(lambda tx: _of_task(tx, uuid))
        elif issue is not None:
            found = await each.engine.store.read(lambda tx: _of_issue(tx, issue))
        if found is not None:
            return found
    return None


async def _of_task(tx: Tx, uuid: str) -> str | None:
    rows = await tx.all("read_tasks", items=[(uuid,)]) or await tx.all("read_archive", id=uuid)
    return str(rows[0]["workspace"]) if rows else None


async def _of_issue(tx: Tx, issue: str) -> str | None:
    for workspace in await tx.all("list_workspaces"):
        if await tx.one("newest_of_issue", workspace=workspace["name"], issue=issue):
            return str(workspace["name"])
    return None


async def everywhere(queue: Queue, *, answering: bool = False) -> list[Queue]:
    """The caller's queue in each workspace whose database answers. Each recognizes a repeated request."""
    names = {queue.workspace}
    for each in queue.databases():
        try:
            names |= {row["name"] for row in await each.engine.store.read(lambda tx: tx.all("list_workspaces"))}
        except StoreUnavailable:
            if not answering:
                raise
    return [_in(queue, name) for name in sorted(names)]


def _in(queue: Queue, workspace: str) -> Queue:
    request = queue.caller.idempotency
    known = None if request is None else IdempotentRequest(request.key, request.fingerprint)
    return queue.for_caller(queue.caller._replace(workspace=workspace, idempotency=known))


async def claim(
    queue: Queue, hub: Hub, wait_sec: float, verb: Callable[[Queue], Awaitable[ClaimResult]]
) -> tuple[Queue, ClaimResult]:
    """Claim from the first workspace with work; the order varies, so that none is always first."""
    deadline = asyncio.get_running_loop().time() + wait_sec
    async with hub.listen() as listener:
        while True:
            listener.woken.clear()
            queues = await everywhere(queue, answering=True)  # a workspace may be new
            where, answer = await _poll(random.sample(queues, len(queues)), verb)
            left = deadline - asyncio.get_running_loop().time()
            if answer.assignments or left <= 0:
                return where, answer
            try:
                async with asyncio.timeout(min(left, LOOK_AGAIN_SEC)):
                    await listener.woken.wait()
            except TimeoutError:
                pass


async def _poll(queues: Sequence[Queue], verb: Callable[[Queue], Awaitable[ClaimResult]]) -> tuple[Queue, ClaimResult]:
    """Try each workspace: an agent that one refuses may be accepted by another."""
    answers: list[tuple[Queue, ClaimResult]] = []
    refusal: ShiftworkError | None = None
    for queue in queues:
        try:
            answers.append((queue, await verb(queue)))
        except ShiftworkError as error:
            refusal = error
            continue
        if answers[-1][1].assignments:
            return answers[-1]
    if refusal is not None and not answers:
        raise refusal
    return answers[0]


async def tasks(queues: Sequence[Queue], *, limit: int, newest: bool, **filters: Any) -> Page:
    """A page of tasks across workspaces, by their ids, which sort by creation."""
    pages = [await queue.tasks.list(limit=limit, newest=newest, **filters) for queue in queues]
    found: list[Task] = sorted((task for page in pages for task in page.tasks), key=lambda t: t.id, reverse=newest)
    more = len(found) > limit or any(page.next for page in pages)
    return Page(found[:limit], found[:limit][-1].id if more and found else None)
