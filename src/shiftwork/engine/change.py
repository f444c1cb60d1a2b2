"""Verbs that need no claim: cancel, update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shiftwork.engine import critical_path, dependencies, dependents
from shiftwork.engine.dependencies import Dependency, block_check_at, refuse_outer_cycle
from shiftwork.engine.dependents import apply_ended_dependencies
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import check_version
from shiftwork.engine.new_rows import NewEdge
from shiftwork.engine.prepare import as_new, estimated_cost, relane
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.fairness.policy import TAG
from shiftwork.model import ids, times
from shiftwork.model.errors import InputError, NotFound, ShiftworkError, UnknownDependency, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, SETTLED, WAITING, State
from shiftwork.model.task import Changes
from shiftwork.model.times import epoch, shown
from shiftwork.store.store import Tx
from shiftwork.waits import approval_guard as guard
from shiftwork.waits import schedule
from shiftwork.waits.model import WAITS


async def cancel(
    tx: Tx, engine: Engine, caller: Caller, task_ids: Sequence[str], reason: str, version: int | None
) -> list[Outcome]:
    """Cancel tasks in any state, and their dependents as their settings say."""
    work = UnitOfWork(tx, engine, caller)
    found = {row.id: row for row in await work.lock(sorted(task_ids))}
    outcomes: list[Outcome] = []
    roots: set[str] = set()
    for task_id in task_ids:
        row = found.get(task_id)
        error = await _may_not_cancel(work, row, task_id, version)
        if error is None and row is not None:
            await review_as_cancelled(work, row, reason)
            dependents.cancel_row(work, row, reason)
            roots.add(row.root_id)
            outcomes.append(Outcome(ids.show_task(task_id), State.CANCELLED))
        else:
            outcomes.append(Outcome(ids.show_task(task_id), error=error))
    await dependents.cancel_dependents(work, roots)
    await work.save()
    return outcomes


async def _may_not_cancel(
    work: UnitOfWork, row: TaskRow | None, task_id: str, version: int | None
) -> ShiftworkError | None:
    shown = ids.show_task(task_id)
    if row is None:
        return NotFound(f"there is no task {shown}", task_id=shown)
    allowed = (await work.settings_of(row)).cancel.from_states
    if row.status in FINAL or row.status not in allowed or not work.is_newest(row):
        what = "is already cancelled" if row.status == "cancelled" else f"is {row.status} and cannot be cancelled"
        return WrongState(f"task {shown} {what}", task_id=shown, status=row.status)
    return check_version(work.engine, row, version)


async def review_as_cancelled(work: UnitOfWork, row: TaskRow, reason: str) -> None:
    """Cancelling a settled task is a decision about its dead letter."""
    if row.status not in SETTLED:
        return
    await work.tx.run("review_letters", items=[(row.id, row.round, "cancel", True, False)])
    await work.tx.run("resolve_alerts_of", items=[(row.id,)], now=work.now, actor=work.caller.actor)
    await work.tx.insert("insert_reviews", [(row.id, row.round, work.now, work.caller.actor, "cancel", reason, None)])


async def cancel_dag(tx: Tx, engine: Engine, caller: Caller, workspace: str, dag_id: str, reason: str) -> list[Outcome]:
    """Cancel everything of a DAG that has not ended."""
    work = UnitOfWork(tx, engine, caller)
    locked = await _lock_open(work, workspace, dag_id)
    work.dag_cancellers[dag_id] = caller.actor
    ended = []
    for row in locked:
        if row.dag_id == dag_id and row.status not in FINAL and work.is_newest(row):
            await review_as_cancelled(work, row, reason)
            dependents.cancel_row(work, row, reason)
            ended.append(row)
    await dependents.cancel_dependents(work, {row.root_id for row in ended})
    await work.save()
    return [Outcome(ids.show_task(row.id), row.status) for row in ended]


async def _lock_open(work: UnitOfWork, workspace: str, dag_id: str) -> list[TaskRow]:
    """The open tasks of a DAG. Retries and subtasks may have been added while we waited for the lock, so look again."""
    locked: dict[str, TaskRow] = {}
    while True:
        rows = [row for row in await work.tx.all("tasks_of_dag", dag=dag_id) if row["workspace"] == workspace]
        if not rows:
            raise NotFound(f"there is no DAG {ids.show_dag(dag_id)}")
        more = [row["id"] for row in rows if row["status"] not in FINAL and row["id"] not in locked]
        if not more:
            return list(locked.values())
        locked |= {row.id: row for row in await work.lock(more)}


async def update(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    task_id: str,
    changes: Changes,
    version: int | None,
) -> Outcome:
    """Change a task that is not claimed: its priority, deadline, limits, tags or dependencies."""
    work = UnitOfWork(tx, engine, caller)
    row, name = await work.lock_named(task_id), ids.show_task(task_id)
    if row.status not in WAITING:
        raise WrongState(f"task {name} is {row.status}; only an unclaimed task can be changed", task_id=name)
    if error := check_version(engine, row, version):
        raise error
    changed = _change_columns(row, changes, work.now)
    if changes.tags is not None:
        await tx.run("delete_tags", items=[(row.id,)])
        await tx.insert("insert_tags", [(row.workspace, tag, row.id) for tag in dict.fromkeys(changes.tags)])
        changed["tags"] = changes.tags
    await _change_body(work, row, changes)
    path = None
    above: list[Dependency] = []
    if changes.dependencies is not None:
        changed["dependencies"] = changes.dependencies
        above = await _change_dependencies(work, row, changes.dependencies)
    if changes.run_at is not None or "run_at" in changes.clear:
        changed["run_at"] = await _change_time(work, row, epoch(changes.run_at))
    if changes.dependencies is not None or "run_at" in changed:
        path = await _wait_or_go(work, row, changed)
    work.touch(row)
    settings = await work.settings_of(row)
    if changes.tags is not None and settings.fair_share.by.startswith(TAG):
        await relane(work, row)
    if path is None:
        path, event_data = await guard.reconsider(work, row, settings)
        changed.update(event_data)
    if row.status == State.READY and path is None:
        work.mark_ready(row, settings)
    work.emit(row, "updated", path, reason=changes.note, data=changed)
    await apply_ended_dependencies(work, {row.root_id: above})
    await work.save()
    return Outcome(name, row.status, data={"version": row.version})


async def set_priority(
    tx: Tx, engine: Engine, caller: Caller, task_ids: Sequence[str], priority: float, note: str | None
) -> list[Outcome]:
    """Change the priority of tasks that no one holds; each has its own outcome."""
    work = UnitOfWork(tx, engine, caller)
    found = {row.id: row for row in await work.lock(sorted(task_ids))}
    changed = [row for row in found.values() if row.status in WAITING and work.is_newest(row)]
    bodies = await tx.all("read_bodies", items=[(row.id,) for row in changed]) if changed else ()
    written = [(row["task_id"], as_json({**msgspec.json.decode(row["body"]), "priority": priority})) for row in bodies]
    if written:
        await tx.run("save_bodies", items=sorted(written))
    for row in changed:
        before, row.priority = row.priority, priority
        work.touch(row)
        settings = await work.settings_of(row)
        path, data = await guard.reconsider(work, row, settings)
        if row.status == State.READY and path is None:
            work.mark_ready(row, settings)
        work.emit(row, "updated", path, reason=note, data={"priority": {"from": before, "to": priority}, **data})
    await work.save()
    done = {row.id for row in changed}
    return [_priority_outcome(task_id, found.get(task_id), task_id in done) for task_id in task_ids]


def _priority_outcome(task_id: str, row: TaskRow | None, is_changed: bool) -> Outcome:  # noqa: FBT001  # called once
    shown = ids.show_task(task_id)
    if row is None:
        return Outcome(shown, error=NotFound(f"there is no task {shown}", task_id=shown))
    if not is_changed:
        what = f"task {shown} is {row.status}; only an unclaimed task can be changed"
        return Outcome(shown, error=WrongState(what, task_id=shown, status=row.status))
    return Outcome(shown, row.status)


CLEARED = frozenset({"deadline", "run_at", "expires_at", "timeout_sec"})
"""Fields that a change can empty."""


def _change_columns(row: TaskRow, changes: Changes, now: float) -> dict[str, Any]:
    if unknown := [name for name in changes.clear if name not in CLEARED]:
        raise InputError(f"{unknown[0]!r} cannot be emptied", where="changes.clear")
    changed: dict[str, Any] = {}
    _refuse_expired(row, changes, now)
    for name in ("priority", "deadline", "expires_at", "timeout_sec", "max_attempts"):
        value = _given(changes, name)
        if value is None and name not in changes.clear:
            continue
        changed[name] = {"from": getattr(row, name), "to": value}
        setattr(row, name, value)
    if changes.estimated_cost_usd is not None:
        changed["estimated_cost_usd"] = changes.estimated_cost_usd
    return changed


def _given(changes: Changes, name: str) -> Any:
    """A field as it is stored."""
    value = times.number(getattr(changes, name), f"changes.{name}")
    if name == "timeout_sec" and value is not None and value <= 0:
        raise InputError(f"expected more than 0 seconds, got {value:g}", where="changes.timeout_sec")
    return value


def _refuse_expired(row: TaskRow, changes: Changes, now: float) -> None:
    expires_at, run_at = epoch(changes.expires_at, "changes.expires_at"), epoch(changes.run_at, "changes.run_at")
    if expires_at is not None and expires_at <= now:
        what = f"the task would have expired already: {shown(expires_at)} is not in the future"
        raise InputError(what, where="changes.expires_at", hint="Choose a later time, or cancel the task.")
    until = expires_at or (None if "expires_at" in changes.clear else row.expires_at)
    if until is not None and run_at is not None and until <= run_at:
        what = f"the task would expire at {shown(until)}, and may not start before {shown(run_at)}"
        raise InputError(what, where="changes.run_at", hint="Choose an expiry after `run_at`.")


async def _change_time(work: UnitOfWork, row: TaskRow, run_at: float | None) -> dict[str, Any]:
    """Change or clear the task's start time; a task that waits for its retry is retried then."""
    if row.status == State.PENDING and row.hold in WAITS:
        name = ids.show_task(row.id)
        what = f"task {name} has begun and waits for a {row.hold}; its start time can no longer change"
        raise WrongState(what, task_id=name, status=row.status)
    if row.status == State.RETRYING:
        changed = {"from": row.available_at, "to": run_at}
        row.available_at = work.now if run_at is None else run_at
        return changed
    open_ = [wait for wait in await work.tx.all("open_waits_of", items=[(row.root_id,)]) if not wait["name"]]
    if run_at is not None and run_at > work.now:
        await schedule.begin(work, row, run_at)
    elif open_:
        await schedule.end(work, row)
    return {"from": open_[0]["until"] if open_ else None, "to": run_at}


async def _change_body(work: UnitOfWork, row: TaskRow, changes: Changes) -> None:
    """Update the copies of these fields in the body."""
    given = {
        name: _given(changes, name)
        for name in (
            *("priority", "deadline", "run_at", "expires_at"),
            *("timeout_sec", "max_attempts", "estimated_cost_usd", "tags"),
        )
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not given and not changes.clear:
        return
    body = {k: v for k, v in (await read_body(work.tx, row.id)).items() if k not in changes.clear}
    body.update(given)
    row.estimated_cost = estimated_cost(as_new(body))
    await work.tx.run("save_bodies", items=[(row.id, as_json(body))])


async def _change_dependencies(work: UnitOfWork, row: TaskRow, wanted: list[str]) -> list[Dependency]:
    """Replace the edges."""
    await work.tx.advisory_lock(f"edges:{row.workspace}")
    names = {name: name for name in dict.fromkeys(wanted)}
    found = await dependencies.resolve(work.tx, row.workspace, names)
    missing = [name for name in names if name not in found]
    settings = await work.settings_of(row)
    if missing and settings.missing_dependency == "reject":
        raise UnknownDependency(f"there is no task {missing[0]!r}", where="dependencies")
    found.update(await dependencies.await_missing(work.tx, work.engine, row.workspace, missing))
    above = list({dependency.root: dependency for dependency in found.values()}.values())
    await work.tx.run("delete_own_edges", items=[(row.root_id,)])
    await refuse_outer_cycle(work, {row.root_id: [dependency.root for dependency in above]})
    edges = [NewEdge(row.root_id, dependency.root, dependency.status == State.COMPLETED) for dependency in above]
    await work.tx.insert("insert_edges", sorted(edges))
    await critical_path.lengthen(work, {dependency.root: row.path_weight + 1 for dependency in above})
    row.blocked_reason, row.block_check_at = None, block_check_at(settings, above, work.now)
    return above


async def _wait_or_go(work: UnitOfWork, row: TaskRow, changed: dict[str, Any]) -> str | None:
    """Make the task pending or ready, depending on what it now waits for."""
    row.waiting = await dependents.count_waiting(work, row.root_id)
    settings = await work.settings_of(row)
    if row.waiting and row.status in {State.WAITING_APPROVAL, State.READY, State.RETRYING}:
        if row.status == State.WAITING_APPROVAL:
            await guard.withdraw(work, row)
        return work.move(row, "block")
    if not row.waiting and row.status == State.PENDING:
        path, data = await guard.unblock_or_guard(work, row, settings, "unblock")
        changed.update(data or {})
        return path
    return None
