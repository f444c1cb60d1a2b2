"""Tasks, DAGs and events over HTTP: answers with an ETag, submissions in a document's names, and streams."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from shiftwork import views
from shiftwork.dags.api import Dags
from shiftwork.engine.api import Everyday, Results, Submissions, Tasks
from shiftwork.model import check
from shiftwork.model.errors import InputError, NotFound, ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.task import Name, NewTask, Task
from shiftwork.operation.declare import Operation, operation_of
from shiftwork.server import request_parsing, workspace_lookup
from shiftwork.server.endpoint import serves
from shiftwork.server.request_context import RequestContext, plain

STEADY = frozenset({"base", "dependency", "type"})
"""The parts of a priority that do not change with time."""
FILTERS = operation_of(Tasks.list).parameters.names


@serves(Submissions.submit, viewed_body=True)
async def submit(context: RequestContext, body: Any) -> Any:
    if context.view is None:
        return await context.queue.executor.perform(operation_of(Submissions.submit), {"task": body})
    return await _submit_in_view(context, body)


async def _submit_in_view(context: RequestContext, body: dict[str, Any] | list[dict[str, Any]]) -> Any:
    """Submit under a document's names; the answer is the whole task in the document's form."""
    dag_id = _dag_to_join(context, body)
    if isinstance(body, list):
        tasks = [context.ours(fields, place) for place, fields in enumerate(body)]
        many = await (
            context.queue.submit_many(tasks) if dag_id is None else context.queue.dags.add_tasks(dag_id, tasks)
        )
        return context.tasks(await context.queue.batch.get([made.id for made in many]))
    new = check.read(context.ours(body), NewTask, "task")
    made = await context.queue.submit(new) if dag_id is None else (await context.queue.dags.add_tasks(dag_id, [new]))[0]
    return context.task(await context.queue.get(made.id))


def _dag_to_join(context: RequestContext, body: dict[str, Any] | list[dict[str, Any]]) -> str | None:
    """The DAG that new tasks join. A record read earlier and sent back names its own DAG, which does not count."""
    assert context.view is not None
    tasks = body if isinstance(body, list) else [body]
    if not context.view.shows("dag_id") or any(context.view.is_echo(fields) for fields in tasks):
        return None
    named = {fields.pop("dag_id", None) for fields in tasks}
    if len(named) > 1:
        raise InputError("one call can only add tasks to one DAG", where="dag_id")
    return check.read(next(iter(named), None), Name | None, "dag_id")  # type: ignore[arg-type]  # a union is also a type


@serves(Everyday.get)
async def get_task(context: RequestContext) -> Response:
    task = await context.queue.get(context.path["task_id"])
    return with_tag(context, await context.with_names(context.task(task)), _timeless(task), version=task.version)


@serves(Results.result)
async def result(context: RequestContext) -> Any:
    """Answer with the result; in a view, with the outcome of the last attempt, even a failed one, as documents do."""
    task_id, wait = context.path["task_id"], context.query.wait
    if context.view is None:
        return await _waited(context, operation_of(Results.result), {"task_id": task_id, "wait": wait})
    if wait:
        with suppress(TaskFailed, TaskCancelled, ResultTimeout):
            await _waited(context, operation_of(Results.result), {"task_id": task_id, "wait": wait})
    task = await context.queue.get(task_id)
    if task.result is None:
        raise NotFound(f"task {task.id} has no result: it is {task.status}", task_id=task.id, status=task.status)
    return context.view.result_out(plain(task.result))


@serves(Results.dag_result)
async def dag_result(context: RequestContext) -> Any:
    values = {"dag_id": context.path["dag_id"], "wait": context.query.wait}
    return await _waited(context, operation_of(Results.dag_result), values)


async def _waited(context: RequestContext, operation: Operation, values: dict[str, Any]) -> Any:
    """Run a call that may wait; if the server is stopping, it answers immediately."""
    executor = context.queue.executor
    if values["wait"]:
        await request_parsing.body(context.request)  # after the body, the only other message is a disconnect
        with context.state.waits.place(context.who):
            found = await context.unless_disconnected(executor.execute(operation, values))
        if found is not None:
            return found
    return await executor.execute(operation, {**values, "wait": 0})


@serves(Tasks.list)
async def list_tasks(context: RequestContext) -> Response:
    wanted = {name: getattr(context.query, name) for name in FILTERS}
    named = context.query.status
    words = [named] if isinstance(named, str) else named or []
    statuses = [status for word in words for status in word.split(",") if status]
    if context.view is not None and statuses:
        statuses = sorted({str(state) for word in statuses for state in context.view.statuses_in(word)})
        if not statuses:  # a state of the document in which no task is ever stored
            return with_tag(context, {"tasks": [], "next": None}, None)
    page = await workspace_lookup.tasks(context.queues, **{**wanted, "status": statuses})
    shown: Any = page
    if context.view is not None:
        shown = await context.with_names({"tasks": context.tasks(page.tasks), "next": page.next})
    return with_tag(context, shown, (list(map(_timeless, page.tasks)), page.next))


def _timeless(task: Task) -> Task:
    """The task without fields that change with time, which would give every answer another ETag."""
    parts = {name: value for name, value in task.priority_parts.items() if name in STEADY}
    return msgspec.structs.replace(task, age_minutes=0, effective_priority=0, priority_tier="", priority_parts=parts)


@serves(Dags.get)
async def get_dag(context: RequestContext) -> Response:
    dag = await context.queue.dags.get(context.path["dag_id"])
    return with_tag(context, dag if context.view is None else context.view.dag_out(plain(dag)), dag)


@serves(Dags.list)
async def list_dags(context: RequestContext) -> Response:
    page = await context.queue.dags.list(
        status=context.query.status, after=context.query.after, limit=context.query.limit
    )
    view = context.view
    shown = page if view is None else {"dags": [view.dag_out(plain(dag)) for dag in page.dags], "next": page.next}
    return with_tag(context, shown, page)


def with_tag(context: RequestContext, shown: Any, compared: Any, version: int | None = None) -> Response:
    """An answer with an ETag of `compared`: a poller gets 304 while that is unchanged."""
    request = f"{context.query}{views.name_of(context.view)}".encode()
    digest = hashlib.sha256(msgspec.json.encode(compared) + request).hexdigest()[:16]
    tag = f'W/"{digest}"' if version is None else f'W/"{version}-{digest}"'
    known = [each.strip().removeprefix("W/") for each in context.request.headers.get("if-none-match", "").split(",")]
    if tag.removeprefix("W/") in known:
        return Response(status_code=304, headers={"etag": tag})
    return Response(msgspec.json.encode(shown), headers={"etag": tag}, media_type="application/json")
