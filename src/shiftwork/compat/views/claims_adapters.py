"""Adapters for work under a claim, in the names of a document."""

from __future__ import annotations

from typing import Any

from shiftwork.engine.claims_api import Claims, Spawning, WorkerVerbs
from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.model.reports import TaskFailure, TaskResult
from shiftwork.operation.parameters import CLAIM_FIELDS, ClaimRef
from shiftwork.views.view_adapters import Instead, reads, writes


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


@writes(Spawning.spawn)
async def submitted(request: Any, made: Any) -> Any:
    """Return the tasks, which a document's client expects."""
    return await request.submitted(made)


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


@writes(WorkerVerbs.heartbeat)
async def reply(_request: Any, found: Any) -> Any:
    """Documents have no such record."""
    return found
