"""Deadlines and expiries that pass: each is announced once, and ends its task where that is asked for."""

from __future__ import annotations

from shiftwork.engine import dependents
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.maintenance.jobs import BATCH, Counts
from shiftwork.model import ids, reasons
from shiftwork.model.states import CLAIMED_STATES, WAITING
from shiftwork.store.store import Tx
from shiftwork.validation import policy as verdict

OPEN = WAITING | CLAIMED_STATES
"""States in which a deadline means something: dead letters wait for a person, whatever their deadline."""


async def deadlines(tx: Tx, engine: Engine) -> Counts:
    """Announce tasks whose deadline has passed; cancel those of which `deadline.on_passed` says so."""
    due = await tx.all("due_deadlines", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("duty:deadlines"))
    passed = [row for row in await work.lock(row["id"] for row in due) if _has_passed(row, tx.now)]
    cancelled = set()
    for row in passed:
        if row.validation != verdict.JUDGING and await _announce(work, row):
            cancelled.add(row.root_id)
    await dependents.cancel_dependents(work, cancelled)
    await work.save()
    await tx.run("pass_deadlines", items=sorted((row.id,) for row in passed))
    return {"passed": len(passed)}


async def expiries(tx: Tx, engine: Engine) -> Counts:
    """Cancel tasks that wait for an attempt which must not begin any more."""
    due = await tx.all("due_expiries", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("duty:expiries"))
    expired = set()
    for row in await work.lock(row["id"] for row in due):
        if row.expires_at is None or row.expires_at > tx.now or row.state not in WAITING:
            continue
        dependents.cancel_row(work, row, reasons.EXPIRED, verb=reasons.EXPIRED)
        expired.add(row.root_id)
    await dependents.cancel_dependents(work, expired)
    await work.save()
    return {"expired": len(expired)}


def _has_passed(row: TaskRow, now: float) -> bool:
    return row.deadline is not None and row.deadline <= now and row.state in OPEN


async def _announce(work: UnitOfWork, row: TaskRow) -> bool:
    """Say so once; whether the task was cancelled for it."""
    settings = await work.settings_of(row)
    then = settings.deadline.on_passed
    work.emit(row, "deadline_passed", data={"deadline": row.deadline, "status": row.status, "then": then})
    work.alert(row.workspace, "deadline_passed", row.id, status=row.status)
    if then != "cancel" or row.status not in settings.cancel.from_states or not work.is_newest(row):
        return False
    dependents.cancel_row(work, row, f"Deadline of {ids.show_task(row.id)} passed")
    return True
