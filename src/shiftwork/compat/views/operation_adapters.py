"""Adapters of operations: their requests and answers in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.agents.api import Agents, Registration
from shiftwork.agents.model import NewAgent
from shiftwork.control.api import Control
from shiftwork.control.model import Purge
from shiftwork.dags.api import Dags
from shiftwork.dead_letters.api import DeadLetters
from shiftwork.engine.api import Everyday, Submissions, Tasks
from shiftwork.engine.claims_api import Claims, Spawning, WorkerVerbs
from shiftwork.limits.api import Breakers
from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.model.reports import TaskFailure, TaskResult
from shiftwork.model.task import NewDag
from shiftwork.operation.declare import operation_of
from shiftwork.operation.parameters import CLAIM_FIELDS, ClaimRef
from shiftwork.views.view_adapters import Instead, reads, translates, writes
from shiftwork.waits.api import Approvals


@reads(Submissions.submit_dag)
async def new_dag(request: Any, body: Any) -> dict[str, Any]:
    return {"dag": check.read(request.all_ours(body), NewDag, "dag")}


@reads(Dags.add_tasks)
async def more_tasks(request: Any, body: Any) -> dict[str, Any]:
    given = check.read(request.all_ours(body), operation_of(Dags.add_tasks).parameters.body)
    return {"dag_id": request.path["dag_id"], "tasks": given.tasks}


@writes(Submissions.submit_dag)
@writes(Dags.add_tasks)
@writes(Spawning.spawn)
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
@writes(WorkerVerbs.start)
@writes(WorkerVerbs.complete)
@writes(WorkerVerbs.fail)
@writes(WorkerVerbs.release)
@writes(Claims.progress)
@writes(Claims.message)
@writes(Claims.pin_session)
@writes(Claims.verdict)
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


@reads(Control.purge)
async def purge(request: Any, body: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(check.read(request.view.purge_in(body), Purge))


@writes(Breakers.list)
async def breakers(request: Any, found: Any) -> Any:
    return request.view.breakers_out([msgspec.to_builtins(each) for each in found])


@writes(Approvals.approve)
@writes(Approvals.reject)
@writes(Approvals.answer)
async def task_of_decision(request: Any, outcome: Any) -> Any:
    """Return the task after the change, which a document's client expects."""
    return request.task(await request.queue.get(outcome.task_id))


async def _under_claim(request: Any, body: Any) -> tuple[str, dict[str, Any]]:
    """Split a body in a document's names into the token of its claim and the report."""
    held = check.read({name: body[name] for name in CLAIM_FIELDS & body.keys()}, ClaimRef)
    token: str = await request.token(held)
    return token, {name: value for name, value in body.items() if name not in CLAIM_FIELDS}


@reads(Claims.progress)
async def progress(request: Any, body: Any) -> dict[str, Any]:
    token, given = await _under_claim(request, body)
    return {"token": token, "value": given["progress"] if given.keys() == {"progress"} else given}


@reads(WorkerVerbs.complete)
async def result(request: Any, body: Any) -> dict[str, Any] | Instead:
    """Submit a result; one that reports a failure fails the attempt."""
    await _check_named(request, body)
    token, given = await _under_claim(request, body)
    found = request.view.result_in(given)
    if _has_failed(found):
        return Instead(WorkerVerbs.fail, _failure(request, token, _failed(found)))
    checked = check.read(found, TaskResult)
    return {"token": token, **{name: getattr(checked, name) for name in TaskResult.__struct_fields__}}


async def _check_named(request: Any, body: Any) -> None:
    """Check that the task named by a result is the task of the call."""
    for name in ("task_id", "id"):
        if isinstance(body.get(name), str) and not await request.is_same_task(body[name], request.path["task_id"]):
            raise InputError("the result is for another task", where=name)


def _has_failed(found: dict[str, Any]) -> bool:
    """Whether a result reports a failure; removes the status fields."""
    status, success = found.pop("status", None), found.pop("success", None)
    if status not in {None, "success", "failed"}:
        raise InputError(f"{status!r} is not a final status of an attempt", where="status")
    implied = {True: "success", False: "failed"}.get(success) if isinstance(success, bool) else success
    if success is not None and (not isinstance(success, bool) or status not in {None, implied}):
        raise InputError("expected true or false, in agreement with status", where="success")
    failed = status == "failed" or success is False
    if not failed and found.pop("error", None) is not None:
        raise InputError("a successful result cannot have an error", where="error")
    return failed


def _failed(found: dict[str, Any]) -> dict[str, Any]:
    """The fields of a failed attempt. A report sent with it is stored in the data."""
    report, data = found.pop("decision_report", None), found.pop("data", None)
    if report is not None:
        data = {"output": data, "decisionReport": report}
    if (text := found.pop("text", None)) is not None and data is None:
        data = text
    return {**found, "data": data}


def _failure(request: Any, token: str, found: dict[str, Any]) -> dict[str, Any]:
    checked = check.read(found, TaskFailure)
    fields = {name: getattr(checked, name) for name in TaskFailure.__struct_fields__}
    reason = request.view.reason_in(checked.reason) if checked.reason else checked.reason
    return {"token": token, **fields, "reason": reason}


@reads(WorkerVerbs.fail)
async def failure(request: Any, body: Any) -> dict[str, Any]:
    token, given = await _under_claim(request, body)
    return _failure(request, token, request.view.failure_in(given))


@reads(Spawning.spawn)
async def subtasks(request: Any, body: Any) -> dict[str, Any]:
    token, given = await _under_claim(request, request.all_ours(body))
    return {"token": token, **given}


@writes(WorkerVerbs.heartbeat)
async def reply(_request: Any, found: Any) -> Any:
    """Documents have no such record."""
    return found
