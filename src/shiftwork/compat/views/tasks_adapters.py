"""Adapters for tasks, DAGs and dead letters, in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.dags.api import Dags
from shiftwork.dead_letters.api import DeadLetters
from shiftwork.engine.api import Everyday, Submissions, Tasks
from shiftwork.model import check
from shiftwork.model.task import NewDag
from shiftwork.operation.declare import operation_of
from shiftwork.views.view_adapters import reads, translates, writes


@reads(Submissions.submit_dag)
async def new_dag(request: Any, body: Any) -> dict[str, Any]:
    return {"dag": check.read(request.all_ours(body), NewDag, "dag")}


@reads(Dags.add_tasks)
async def more_tasks(request: Any, body: Any) -> dict[str, Any]:
    given = check.read(request.all_ours(body), operation_of(Dags.add_tasks).parameters.body)
    return {"dag_id": request.path["dag_id"], "tasks": given.tasks}


@writes(Submissions.submit_dag)
@writes(Dags.add_tasks)
async def submitted(request: Any, made: Any) -> Any:
    """Return the tasks, which a document's client expects."""
    return await request.submitted(made)


@reads(Tasks.update)
async def changes(request: Any, body: Any) -> dict[str, Any]:
    task_id = request.path["task_id"]
    kept = {name: body.pop(name) for name in ("note", "clear") if name in body}
    now = msgspec.json.decode(msgspec.json.encode(await request.queue.get(task_id)))  # as a reader gets it
    return {"task_id": task_id, "changes": {**request.view.changes_in(body, now), **kept}}


@writes(Everyday.cancel)
@writes(Tasks.update)
@writes(Tasks.rerun)
@writes(Tasks.rerun_issue)
@writes(DeadLetters.review)
async def task_after(request: Any, outcome: Any) -> Any:
    return await request.task_after(outcome)


@writes(Dags.cancel)
async def tasks_after(request: Any, outcomes: Any) -> Any:
    return await request.tasks_after(outcomes)


@writes(Tasks.history)
async def history(request: Any, found: Any) -> Any:
    return {"transitions": request.view.transitions_out(map(msgspec.to_builtins, found.transitions))}


@writes(Everyday.status)
async def status(request: Any, found: Any) -> Any:
    return found if not request.view.queue else request.view.queue_out(msgspec.to_builtins(found))


@writes(Dags.update)
async def dag(request: Any, found: Any) -> Any:
    return request.view.dag_out(msgspec.to_builtins(found))


@translates(DeadLetters.review)
async def decision(request: Any, values: dict[str, Any]) -> dict[str, Any]:
    change = None if values["change"] is None else request.view.changes_in(values["change"])
    return {**values, "decision": request.resolution(values["decision"]), "change": change}


@translates(DeadLetters.redrive)
async def decision_about_all(request: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "decision": request.resolution(values["decision"])}


@writes(DeadLetters.list)
async def letters(request: Any, found: Any) -> Any:
    return {"dead_letters": [request.view.dead_letter_out(msgspec.to_builtins(letter)) for letter in found]}
