"""Handles deadlines and expiries: each is announced once, and ends its task if so configured."""

from __future__ import annotations

from shiftwork.engine import dependents, finish
from shiftwork.engine.decide import after_deadline
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.maintenance.model import BATCH, Counts
from shiftwork.model import ids, reasons
from shiftwork.model.states import CLAIMED_STATES, WAITING, State
from shiftwork.model.times import shown
from shiftwork.settings.model import Settings
from shiftwork.store.store import Tx
from shiftwork.validation import policy as verdict
from shiftwork.waits import approval_guard

OPEN = WAITING | CLAIMED_STATES
"""States in which a deadline matters: dead letters wait for a person, whatever their deadline."""


async def deadlines(tx: Tx, engine: Engine) -> Counts:
    """Announce tasks whose deadline has passed; end them if `deadline.on_passed` says so."""
    due = await tx.all("due_deadlines", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("maintenance:deadlines"))
    passed = [row for row in await work.lock(row["id"] for row in due) if _has_passed(row, tx.now)]
    cancelled = set()
    for row in passed:
        if row.validation == verdict.JUDGING:
            continue
        settings = await work.settings_of(row)
        then = settings.deadline.on_passed if work.is_newest(row) else "alert"
        if then == "fail":
            await _fail(work, row, settings)
            continue
        _announce(work, row, settings.deadline.on_passed)
        if then == "cancel" and row.status in settings.cancel.from_states:
            dependents.cancel_row(work, row, f"Deadline of {ids.show_task(row.id)} passed")
            cancelled.add(row.root_id)
    await dependents.cancel_dependents(work, cancelled)
    await work.save()
    await tx.run("pass_deadlines", items=sorted((row.id,) for row in passed))
    return {"passed": len(passed)}


async def expiries(tx: Tx, engine: Engine) -> Counts:
    """Cancel waiting tasks that have expired."""
    due = await tx.all("due_expiries", now=tx.now, count=BATCH)
    if not due:
        return {}
    work = UnitOfWork(tx, engine, Caller("maintenance:expiries"))
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


def _announce(work: UnitOfWork, row: TaskRow, then: str, path: str | None = None, status: str | None = None) -> None:
    """Announce the passed deadline, once."""
    was = status or row.status
    reason = reasons.DEADLINE_EXCEEDED if path else None
    work.emit(row, "deadline_passed", path, reason=reason, data={"deadline": row.deadline, "status": was, "then": then})
    work.alert(row.workspace, "deadline_passed", row.id, status=was)


async def _fail(work: UnitOfWork, row: TaskRow, settings: Settings) -> None:
    """End the attempt as failed; a task without one becomes a dead letter directly."""
    error = f"The deadline passed at {shown(row.deadline or work.now)}"
    if row.held:
        _announce(work, row, "fail")
        decision = after_deadline(await finish.facts_of(work, row), settings)
        await finish.end_failed(work, row, decision, error=error, lost=True)
        return
    was = row.status
    if was == State.WAITING_APPROVAL:
        await approval_guard.withdraw(work, row)
    path = work.move(row, "overdue")
    row.failure_reason = reasons.DEADLINE_EXCEEDED
    row.available_at = row.blocked_reason = row.block_check_at = None
    _announce(work, row, "fail", path, was)
    work.dead_letter(row, reason=reasons.DEADLINE_EXCEEDED, error=error, poison=False)
    await dependents.fail_dependents(work, {row.root_id})
