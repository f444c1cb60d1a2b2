"""Tasks: submitted, read, changed, cancelled and run again."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from shiftwork import views
from shiftwork.core.errors import (
    CircularDependency,
    InputError,
    NotFound,
    UnknownDependency,
    VersionConflict,
    WrongState,
)
from shiftwork.core.task import Name, NewTask, Result, Submitted, Task
from shiftwork.queue import check
from shiftwork.queue.change import Changes
from shiftwork.queue.face.reading import Page
from shiftwork.queue.observation.explain import Explanation
from shiftwork.queue.read import Attempt
from shiftwork.server import reading, spanning
from shiftwork.server.ask import Ask, outcomes, plain
from shiftwork.server.door import Doors, PageSize, Query, ViewQuery
from shiftwork.server.routes.working import SUBMITTING
from shiftwork.wire.shapes import (
    CancelBatch,
    CancelBody,
    GetBatch,
    History,
    OutcomeReply,
    Outcomes,
    RerunIssueBody,
    TaskList,
    UpdateBody,
)

door = Doors("Tasks")
STEADY = frozenset({"base", "dependency", "type"})
"""The parts of a priority that do not come from a clock."""


@door(
    "POST /api/tasks",
    "submit",
    body=NewTask | list[NewTask],
    query=ViewQuery,
    answer=Submitted | list[Submitted],
    status=201,
    errors=SUBMITTING,
    viewed_body=True,
)
async def submit(ask: Ask, body: Any) -> Any:
    """Submit one task, or a list of them at once, all or nothing."""
    if ask.view is not None:
        return await _submit_in_view(ask, body)
    return await (ask.queue.submit_many(body) if isinstance(body, list) else ask.queue.submit(body))


async def _submit_in_view(ask: Ask, body: dict[str, Any] | list[dict[str, Any]]) -> Any:
    """In a document's names; the answer is the whole task, as its reader knows it."""
    dag_id = _dag_to_join(ask, body)
    if isinstance(body, list):
        tasks = [ask.ours(fields, place) for place, fields in enumerate(body)]
        many = await (ask.queue.submit_many(tasks) if dag_id is None else ask.queue.add_to_dag(dag_id, tasks))
        return ask.tasks(await ask.queue.get_many([made.id for made in many]))
    new = ask.ours(body)
    made = await ask.queue.submit(new) if dag_id is None else (await ask.queue.add_to_dag(dag_id, [new]))[0]
    return ask.task(await ask.queue.get(made.id))


def _dag_to_join(ask: Ask, body: dict[str, Any] | list[dict[str, Any]]) -> str | None:
    """The DAG that new tasks are to be part of; a record that was read before names the one it is in."""
    assert ask.view is not None
    tasks = body if isinstance(body, list) else [body]
    if not ask.view.shows("dag_id") or any(ask.view.is_echo(fields) for fields in tasks):
        return None
    named = {fields.pop("dag_id", None) for fields in tasks}
    if len(named) > 1:
        raise InputError("one call adds tasks to one DAG", where="dag_id")
    return check.read(next(iter(named), None), Name | None, "dag_id")  # type: ignore[arg-type]  # a union is a kind


class TaskQuery(ViewQuery):
    """Which tasks."""

    status: list[str] = []
    type: str | None = None
    agent: str | None = None
    issue: str | None = None
    tag: str | None = None
    dag: str | None = None
    parent: str | None = None
    since: float | None = None
    until: float | None = None
    after: str | None = None
    limit: PageSize = 100
    newest: bool = False
    """The newest first."""


FILTERS = tuple(name for name in TaskQuery.__struct_fields__ if name not in ViewQuery.__struct_fields__)


@door("GET /api/tasks", "read", query=TaskQuery, answer=Page, errors=(NotFound,))
async def list_tasks(ask: Ask) -> Any:
    """Tasks in the order of their creation, a page at a time; `next` is the cursor of the following page."""
    wanted = {name: getattr(ask.query, name) for name in FILTERS}
    statuses = [status for word in ask.query.status for status in word.split(",") if status]
    if ask.view is not None and statuses:
        statuses = sorted({str(state) for word in statuses for state in ask.view.statuses_in(word)})
        if not statuses:  # the document has a word for a state that no task rests in
            return with_tag(ask, {"tasks": [], "next": None}, None)
    page = await spanning.tasks(ask.queues, **{**wanted, "status": statuses})
    shown = page if ask.view is None else await ask.renamed({"tasks": ask.tasks(page.tasks), "next": page.next})
    return with_tag(ask, shown, (list(map(_timeless, page.tasks)), page.next))


@door("GET /api/tasks/{task_id}", "read", query=ViewQuery, answer=Task, errors=(NotFound,))
async def get_task(ask: Ask) -> Any:
    """One task, whole. Its ETag begins with its version, which a change may be made conditional on."""
    task = await ask.queue.get(ask.path["task_id"])
    return with_tag(ask, await ask.renamed(ask.task(task)), _timeless(task), version=task.version)


def _timeless(task: Task) -> Task:
    """A task without what time alone changes: with its age in it, no answer would ever be the same as the last."""
    parts = {name: value for name, value in task.priority_parts.items() if name in STEADY}
    return msgspec.structs.replace(task, age_minutes=0, effective_priority=0, priority_tier="", priority_parts=parts)


@door("POST /api/batch/get", "read", body=GetBatch, answer=TaskList, errors=(NotFound,))
async def get_many(ask: Ask, body: GetBatch) -> Any:
    """Several tasks, whole, in the order asked for; those that do not exist are left out."""
    return TaskList(await ask.queue.get_many(body.task_ids))


def with_tag(ask: Ask, shown: Any, compared: Any, version: int | None = None) -> Response:
    """An answer that a poller need not read again while all that is `compared` is as it was."""
    asked = f"{ask.query}{views.name_of(ask.view)}".encode()
    digest = hashlib.sha256(msgspec.json.encode(compared) + asked).hexdigest()[:16]
    tag = f'W/"{digest}"' if version is None else f'W/"{version}-{digest}"'
    known = [each.strip().removeprefix("W/") for each in ask.request.headers.get("if-none-match", "").split(",")]
    if tag.removeprefix("W/") in known:
        return Response(status_code=304, headers={"etag": tag})
    return Response(msgspec.json.encode(shown), headers={"etag": tag}, media_type="application/json")


@door(
    "PATCH /api/tasks/{task_id}",
    "operate",
    body=UpdateBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=(NotFound, WrongState, VersionConflict, CircularDependency, UnknownDependency),
    viewed_body=True,
)
async def update(ask: Ask, body: Any) -> Any:
    """Change a task that nobody holds; with `If-Match` only if it is still at the version that was read."""
    if ask.view is not None:
        said = {name: body.pop(name) for name in ("note", "clear") if name in body}
        now = msgspec.json.decode(msgspec.json.encode(await ask.queue.get(ask.path["task_id"])))  # as it is read
        body = check.read({**ask.view.changes_in(body, now), **said}, UpdateBody)
    changes = Changes(**{name: getattr(body, name) for name in Changes.__struct_fields__})
    told = await ask.queue.update(ask.path["task_id"], changes, note=body.note, version=reading.if_match(ask.request))
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/cancel",
    "operate",
    body=CancelBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=(NotFound, WrongState, VersionConflict),
)
async def cancel(ask: Ask, body: CancelBody) -> Any:
    """Cancel a task that has not ended, and what depends on it, as its settings say."""
    version = body.version if body.version is not None else reading.if_match(ask.request)
    told = await ask.queue.cancel(ask.path["task_id"], body.reason, version=version)
    return await ask.task_after(told)


@door("POST /api/batch/cancel", "operate", body=CancelBatch, answer=Outcomes, errors=(NotFound,))
async def cancel_many(ask: Ask, body: CancelBatch) -> Any:
    """Cancel several tasks; each has its own outcome."""
    told = await ask.queue.cancel_many(body.task_ids, body.reason, version=body.version)
    return outcomes(told)


@door(
    "POST /api/tasks/{task_id}/rerun",
    "submit",
    query=ViewQuery,
    answer=OutcomeReply,
    status=201,
    errors=(NotFound, WrongState),
)
async def rerun(ask: Ask) -> Any:
    """The same work as a new task with a fresh session."""
    told = await ask.queue.rerun(ask.path["task_id"])
    return await ask.task_after(told)


@door(
    "POST /api/issues/{issue_id}/rerun",
    "submit",
    body=RerunIssueBody,
    query=ViewQuery,
    answer=OutcomeReply,
    status=201,
    errors=(NotFound, WrongState),
)
async def rerun_issue(ask: Ask, body: RerunIssueBody) -> Any:
    """Rerun the newest task of an issue, or the one named."""
    told = await ask.queue.rerun_issue(check.name(ask.path["issue_id"], "issue_id"), body.task_id)
    return await ask.task_after(told)


@door("GET /api/tasks/{task_id}/explain", "read", answer=Explanation, errors=(NotFound,))
async def explain(ask: Ask) -> Any:
    """Why a task is not running, and what would change that."""
    return await ask.queue.explain(ask.path["task_id"])


@door("GET /api/tasks/{task_id}/result", "read", query=ViewQuery, answer=Result, errors=(NotFound,))
async def result(ask: Ask) -> Any:
    """What the task came to: its status, result or error, how long it took, and who did it."""
    found = await ask.queue.result(ask.path["task_id"])
    return found if ask.view is None else ask.view.result_out(plain(found))


class HistoryQuery(ViewQuery):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


@door("GET /api/tasks/{task_id}/history", "read", query=HistoryQuery, answer=History, errors=(NotFound,))
async def history(ask: Ask) -> Any:
    """Every change of state with who made it and why, every event, and every attempt.

    In a view: the changes of state, between the states that the document knows.
    """
    task_id = ask.path["task_id"]
    transitions = await ask.queue.transitions(task_id)
    if ask.view is not None:
        return {"transitions": ask.view.transitions_out(map(plain, transitions))}
    attempts: list[Attempt] = []
    with suppress(NotFound):  # of a task that was purged only the events are left
        attempts = await ask.queue.attempts(task_id)
    return History(transitions, await ask.queue.history(task_id, limit=ask.query.limit), attempts)


@door("GET /api/tags/{tag}", "read", query=Query, answer=dict[str, int])
async def tag_counts(ask: Ask) -> Any:
    """How many tasks with this tag are in each state, and how many are done."""
    return await ask.queue.tag_counts(check.name(ask.path["tag"], "tag"))
