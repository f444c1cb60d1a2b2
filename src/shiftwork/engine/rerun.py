"""Reruns ended work: whole or from a step on, unchanged or not, alone or with everything downstream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine import dependents
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lineage import add_rerun_row
from shiftwork.engine.prepare import Prepared, as_new, prepare, without_times
from shiftwork.engine.read import read_body
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import recheck_dependencies
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import TooLarge, WrongState
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, SETTLED, WAITING, State
from shiftwork.model.task import Constraints, NewTask, Spec
from shiftwork.steps import rewind
from shiftwork.store.store import Row, Tx

MAX_DOWNSTREAM = 1000
"""The most edges followed downstream of a task."""


class Again(NamedTuple):
    """The changes for a rerun."""

    from_step: str | None = None
    payload: Mapping[str, Any] | None = None
    model: str | None = None
    downstream: bool = False


AS_BEFORE = Again()


async def rerun(tx: Tx, engine: Engine, caller: Caller, task_id: str, again: Again = AS_BEFORE) -> Outcome:
    """Rerun the work as a new task with a fresh session; it supersedes a pending automatic retry."""
    work = UnitOfWork(tx, engine, caller)
    below = await _lock_downstream(work, task_id) if again.downstream else []
    row = await work.lock_named(task_id)
    newest = await _newest(work, row.root_id)
    if newest.status in WAITING and newest.retry_of is not None:
        dependents.cancel_row(work, newest, "superseded by a manual rerun")
    else:
        _refuse_open(newest)
    step = None if again.from_step is None else await rewind.find(tx, [newest.id, row.id], again.from_step)
    changed = await _change(work, newest, again)
    await _close(work, newest, keep_waits_before=None if step is None else step["began_at"])
    fresh = await add_rerun_row(
        work, newest, waiting=await dependents.count_waiting(work, row.root_id), changed=changed
    )
    data: dict[str, Any] = {}
    if step is not None:
        data["kept_steps"] = await rewind.keep_before(tx, step, newest.id, row.root_id, fresh.id)
    following = await _rerun_downstream(work, below)
    if again.downstream:
        data["downstream"] = [ids.show_task(each.id) for each in following]
    if waiting := [each for each in (fresh, *following) if each.waiting]:
        await work.save_rows()  # from here on, the new rows are current in their lineages
        for each in waiting:
            await recheck_dependencies(work, each)
    await work.save()
    return Outcome(ids.show_task(fresh.id), fresh.status, data=data or None)


def _refuse_open(row: TaskRow) -> None:
    if row.status not in FINAL | SETTLED:
        shown = ids.show_task(row.id)
        raise WrongState(f"task {shown} is {row.status}; it has not ended yet", task_id=shown, status=row.status)


async def _newest(work: UnitOfWork, root_id: str) -> TaskRow:
    root = work.rows[root_id]
    return root if root.newest_id is None else (await work.lock([root.newest_id]))[0]


async def _change(work: UnitOfWork, row: TaskRow, again: Again) -> Prepared | None:
    """The changed task, validated like a new one; None if nothing changed."""
    if again.payload is None and again.model is None:
        return None
    new = as_new(without_times(await read_body(work.tx, row.id)))
    if again.payload is not None:
        new = msgspec.structs.replace(new, payload=dict(again.payload))
    if again.model is not None:
        new = _with_model(new, again.model)
    resolver = await work.engine.settings_cache.load(work.tx, row.workspace)
    return prepare(new, row.workspace, resolver, work.now, check_payload=again.payload is not None)


def _with_model(new: NewTask, model: str) -> NewTask:
    spec = new.spec or Spec()
    wanted = {"model_preferences": [model], "fallback_models": []}
    constraints: Constraints = msgspec.structs.replace(spec.constraints, **wanted)
    return msgspec.structs.replace(new, spec=msgspec.structs.replace(spec, constraints=constraints))


async def _close(work: UnitOfWork, row: TaskRow, *, keep_waits_before: float | None = None) -> None:
    """Close the old task's dead letter. The rerun asks and waits again, except for the results it keeps."""
    if row.status in SETTLED:
        await work.tx.run("review_letters", items=[(row.id, row.round, "rerun", True, False)])
        await work.tx.run("resolve_alerts_of", items=[(row.id,)], now=work.now, actor=work.caller.actor)
    if keep_waits_before is None:
        await work.tx.run("delete_waits", items=[(row.root_id,)])
    else:
        await work.tx.run("delete_waits_after", root=row.root_id, after=keep_waits_before)
    await work.tx.run("forget_failed_waits", items=[(row.root_id,)])


async def _lock_downstream(work: UnitOfWork, task_id: str) -> list[Row]:
    """The edges downstream of a task in its DAG, with all tasks locked; repeats if more were added during the wait."""
    known: list[Row] = []
    while True:
        found = await work.tx.one("read_tasks", items=[(task_id,)])
        if found is None:
            return []
        place = {"root": found["root_id"], "dag": found["dag_id"], "count": MAX_DOWNSTREAM + 1}
        edges = list(await work.tx.all("downstream_of", **place))
        if len(edges) > MAX_DOWNSTREAM:
            what = f"more than {MAX_DOWNSTREAM} edges lie downstream of {ids.show_task(task_id)}"
            raise TooLarge(what, where="downstream", hint="Rerun tasks further down, or submit the DAG again.")
        if edges == known and known:
            return edges
        await dependents.lock_newest(work, {found["root_id"], *(edge["dependent"] for edge in edges)})
        if not edges:
            return []
        known = edges


async def _rerun_downstream(work: UnitOfWork, edges: Sequence[Row]) -> list[TaskRow]:
    """Dependents of rerun work wait for it and are rerun as well; those that have not begun only wait."""
    await work.tx.run("reopen_edges", items=sorted((edge["dependent"], edge["dependency"]) for edge in edges))
    following = []
    for root in dict.fromkeys(edge["dependent"] for edge in edges):
        row = await _newest(work, root)
        if row.status == State.PENDING and not row.fence:
            row.waiting = await dependents.count_waiting(work, root)
            work.touch(row)
            following.append(row)
            continue
        _refuse_open(row)
        await _close(work, row)
        following.append(await add_rerun_row(work, row, waiting=await dependents.count_waiting(work, root)))
    return following
