"""Approvals that guards require, and agents' questions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shiftwork.engine import dependents
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import check_version
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids, reasons
from shiftwork.model.errors import RevisionChanged, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import State
from shiftwork.model.task import dollars
from shiftwork.settings.model import Guard
from shiftwork.store.store import Row, Tx, record
from shiftwork.waits import policy as guard
from shiftwork.waits.model import ApprovalRequest

EXPIRED_NOTE = "no decision in time"


async def listed(
    tx: Tx,
    workspace: str,
    kind: str | None,
    type_: str | None,
    task_id: str | None,
    after: str | None,
    count: int,
) -> list[ApprovalRequest]:
    """A page of open requests to people, by task."""
    found = await tx.all(
        "list_asked", workspace=workspace, kind=kind, type=type_, task=task_id, after=after, count=count
    )
    items = [(row["task_id"],) for row in found]
    tags: dict[str, list[str]] = {}
    for row in await tx.all("tags_of", items=items) if items else []:
        tags.setdefault(row["task_id"], []).append(row["tag"])
    return [_request(row, tags.get(row["task_id"], [])) for row in found]


def _request(row: Row, tags: list[str]) -> ApprovalRequest:
    body = msgspec.json.decode(row["body"])
    rule = msgspec.json.decode(row["rule"]) if row["rule"] else None
    return record(
        ApprovalRequest,
        row,
        task_id=ids.show_task(row["task_id"]),
        dag_id=ids.show_dag(row["dag_id"]),
        title=body.get("title"),
        created_by=body.get("created_by"),
        tool_name=body.get("tool_name"),
        payload=body.get("payload", {}),
        spec=body.get("spec"),
        tags=tags,
        estimated_cost_usd=None if row["estimated_cost"] is None else dollars(row["estimated_cost"]),
        rule=None if rule is None else guard.shown(rule),
        schema=msgspec.json.decode(row["schema"]) if row["schema"] else None,
    )


async def decide(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    task_id: str,
    note: str | None,
    revision: str | None,
    version: int | None,
    *,
    approved: bool,
) -> Outcome:
    """Carry out a person's decision on a task that a guard has stopped: it becomes ready, or is cancelled."""
    work = UnitOfWork(tx, engine, caller)
    row, shown = await work.lock_named(task_id), ids.show_task(task_id)
    if row.status != State.WAITING_APPROVAL:
        raise WrongState(f"task {shown} is {row.status} and needs no approval", task_id=shown, status=row.status)
    asked = await tx.one("open_approvals_of", items=[(row.id,)])
    assert asked is not None
    if revision is not None and revision != asked["revision"]:
        engine.conflict("revision_changed", task=shown, expected=revision, actual=asked["revision"])
        raise RevisionChanged(
            f"task {shown} is at revision {asked['revision']}, not {revision}",
            task_id=shown,
            revision=asked["revision"],
        )
    if error := check_version(engine, row, version):
        raise error
    if asked["expires_at"] is not None and asked["expires_at"] <= tx.now:
        raise WrongState(f"no decision about task {shown} in time; its rule decides", task_id=shown)
    await _carry_out(work, row, asked, note, approved=approved)
    await work.save()
    return Outcome(shown, row.status)


async def expire(tx: Tx, engine: Engine, caller: Caller, task_ids: Sequence[str]) -> int:
    """Decide about these as their rules say; returns how many were still open."""
    work = UnitOfWork(tx, engine, caller)
    waiting = [row for row in await work.lock(sorted(task_ids)) if row.status == State.WAITING_APPROVAL]
    asked = {row["task_id"]: row for row in await tx.all("open_approvals_of", items=[(row.id,) for row in waiting])}
    decided = 0
    for row in waiting:
        open_ = asked.get(row.id)
        if open_ is not None and open_["expires_at"] is not None and open_["expires_at"] <= tx.now:
            rule = msgspec.json.decode(open_["rule"], type=Guard)
            await _carry_out(work, row, open_, EXPIRED_NOTE, approved=rule.on_expire == "approve")
            decided += 1
    await work.save()
    return decided


async def _carry_out(work: UnitOfWork, row: TaskRow, asked: Row, note: str | None, *, approved: bool) -> None:
    status = "approved" if approved else "rejected"
    await work.tx.run("decide_approvals", items=[(row.id, status, note)], now=work.now, actor=work.caller.actor)
    data = {"revision": asked["revision"], **({"note": note} if note else {})}
    if approved:
        path = work.move(row, "approve")
        work.mark_ready(row, await work.settings_of(row))
        work.emit(row, "approved", path, data=data)
        return
    path = work.move(row, "cancel")
    row.cancel_reason = row.failure_reason = reasons.APPROVAL_REJECTED
    work.emit(row, "rejected", path, reason=reasons.APPROVAL_REJECTED, data=data)
    await dependents.cancel_dependents(work, {row.root_id})
