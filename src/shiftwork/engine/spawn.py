"""Subtasks: added to the running task's own DAG, with the parent going on or waiting for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.engine import paths
from shiftwork.engine.dependencies import Dependency, refuse_outer_cycle, resolve
from shiftwork.engine.dependents import inherit_fate
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import DagFields, Origin, submit
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.limits import capacity
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound, SpawnLimit
from shiftwork.model.outcome import Token
from shiftwork.model.states import State
from shiftwork.model.task import Submitted
from shiftwork.settings.model import Spawn
from shiftwork.steps import operations as steps
from shiftwork.store.store import Tx
from shiftwork.waits.open_waits import claimed, suspend

SUBTASKS = "subtasks"
"""What a spawn under a name keeps as its step: the ids of what it made."""


async def spawn(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    token: Token,
    batch: Sequence[Prepared],
    lanes: Mapping[Any, int],
    *,
    wait: bool,
    name: str | None = None,
) -> list[Submitted]:
    """Add subtasks under a live claim. With `wait` the parent gives its slot back until they are all completed.

    Under a name it is done once in the life of the task: called again, it answers with the subtasks of the first call.
    """
    if caller.workspace is not None:
        await capacity.enter(tx, engine, caller.workspace)
    work = UnitOfWork(tx, engine, caller)
    row = await claimed(work, token, need_running=wait)
    if name is not None and (before := await _spawned_before(work, row, token, name)) is not None:
        return await _answer_again(work, row, before, wait=wait)
    limits = (await work.settings_of(row)).spawn
    await _refuse_deep(work, row, limits)
    dag = DagFields(join=row.dag_id)
    origin = Origin("spawned", row.id, row.budget_id, waited_by=row.path_weight if wait else None)
    passed_on = {"created_by": f"agent:{row.agent_id}", "traceparent": await _trace_of(tx, row)}
    signed = [_signed(prepared, passed_on) for prepared in batch]
    made = await submit(tx, engine, caller, row.workspace, signed, lanes, dag, origin, work)
    await _refuse_many(work, row, limits)
    if name is not None:
        await steps.keep(tx, engine, row.workspace, token, name, as_json({SUBTASKS: [task.id for task in made]}))
    subtasks = [uuid for uuid in (ids.parse(task.id) for task in made) if uuid is not None]
    # A subtask that waits for its own parent would never run, whether or not the parent waits for it.
    await tx.advisory_lock(f"edges:{row.workspace}")
    found = await resolve(tx, row.workspace, {each: each for each in subtasks})
    await refuse_outer_cycle(work, {row.root_id: [dependency.root for dependency in found.values()]})
    if wait:
        made = [_as_found(work, each, found) for each in made]
        await _park_unless_done(work, row, list(found.values()))
    await work.save()
    return made


def _as_found(work: UnitOfWork, made: Submitted, found: Mapping[str, Dependency]) -> Submitted:
    """As it is now: one that was there before may have moved, and by its state the caller knows whether it waits."""
    dependency = found.get(ids.parse(made.id) or "")
    if not made.duplicate or dependency is None:
        return made
    return msgspec.structs.replace(made, status=_status(work, dependency))


async def _spawned_before(work: UnitOfWork, row: TaskRow, token: Token, name: str) -> dict[str, Dependency] | None:
    """The subtasks that are kept under this name and still there; None where nothing was spawned under it."""
    kept = await steps.recall(work.tx, token, name)
    if kept is None:
        return None
    known = msgspec.json.decode(kept)
    if not isinstance(known, dict) or SUBTASKS not in known:
        hint = "Give the spawn a name of its own."
        raise InputError(f"the step {name!r} of this task spawned nothing", where="name", hint=hint)
    return await resolve(work.tx, row.workspace, {each: each for each in known[SUBTASKS]})


async def _answer_again(
    work: UnitOfWork, row: TaskRow, before: dict[str, Dependency], *, wait: bool
) -> list[Submitted]:
    """The answer of the first call. What is done is not waited for once more."""
    states = {each: _status(work, dependency) for each, dependency in before.items()}
    if wait:
        await work.tx.advisory_lock(f"edges:{row.workspace}")
        await _park_unless_done(work, row, list(before.values()))
    await work.save()
    dag = ids.show_dag(row.dag_id)
    return [Submitted(each, status, duplicate=True, dag_id=dag) for each, status in states.items()]


async def _trace_of(tx: Tx, row: TaskRow) -> str | None:
    body = await tx.one("read_bodies", items=[(row.id,)])
    return None if body is None else msgspec.json.decode(body["body"]).get("traceparent")


def _signed(prepared: Prepared, passed_on: Mapping[str, str | None]) -> Prepared:
    """Anyone who spawns has created it, in the trace of its own task, unless the caller says otherwise."""
    own = {name: value for name, value in passed_on.items() if value and getattr(prepared.new, name) is None}
    if not own:
        return prepared
    new = msgspec.structs.replace(prepared.new, **own)
    body = as_json({**msgspec.json.decode(prepared.body), **own})
    return prepared._replace(new=new, body=body)


async def wait_for(tx: Tx, engine: Engine, caller: Caller, token: Token, references: Sequence[str]) -> str:
    """Give the slot back until these tasks are done; where they all are, the task keeps it and continues."""
    work = UnitOfWork(tx, engine, caller)
    row = await claimed(work, token, need_running=True)
    found = await resolve(tx, row.workspace, {name: name for name in references})
    unknown = [name for name in references if name not in found]
    if unknown:
        raise NotFound(f"there is no task {unknown[0]!r}", where="tasks")
    await tx.advisory_lock(f"edges:{row.workspace}")
    await refuse_outer_cycle(work, {row.root_id: [dependency.root for dependency in found.values()]})
    await _park_unless_done(work, row, list(found.values()))
    await work.save()
    return row.status


async def _refuse_deep(work: UnitOfWork, row: TaskRow, limits: Spawn) -> None:
    """Tasks that spawn tasks that spawn tasks: somewhere it ends."""
    above = await work.tx.one("ancestors_of", id=row.id, most=limits.max_depth)
    if above is not None and above["depth"] >= limits.max_depth:
        raise SpawnLimit(
            f"task {ids.show_task(row.id)} lies {above['depth']} deep; the maximum is {limits.max_depth} deep",
            where="tasks",
            limit="spawn.max_depth",
        )


async def _refuse_many(work: UnitOfWork, row: TaskRow, limits: Spawn) -> None:
    """Counted when they are written, so that those which turned out to exist count once."""
    below = await work.tx.one("count_subtasks", id=row.id)
    if below is not None and below["subtasks"] > limits.max_subtasks:
        raise SpawnLimit(
            f"task {ids.show_task(row.id)} would have {below['subtasks']} subtasks, at most {limits.max_subtasks}",
            where="tasks",
            limit="spawn.max_subtasks",
        )


def _status(work: UnitOfWork, dependency: Dependency) -> str:
    """As this verb leaves it: what it has cancelled is not saved yet."""
    root = work.rows.get(dependency.root)
    return root.status if root is not None and root.newest_id is None else dependency.status


async def _park_unless_done(work: UnitOfWork, row: TaskRow, above: list[Dependency]) -> None:
    """Where nothing is left to wait for, the claim holds and the work continues."""
    if any(_status(work, dependency) != State.COMPLETED for dependency in above):
        await _suspend(work, row, above)


async def _suspend(work: UnitOfWork, row: TaskRow, above: list[Dependency]) -> None:
    """The parent depends on these from now on; it comes back when the last one completes, and pays no attempt."""
    states = {p.root: _status(work, p) for p in above}
    roots = sorted(states)
    await paths.lengthen(work, dict.fromkeys(roots, row.path_weight + 1))
    await work.tx.insert("insert_waits_for", [(row.root_id, r, states[r] == State.COMPLETED, True) for r in roots])
    await suspend(work, row, {"for": [ids.show_task(root) for root in roots]})
    await inherit_fate(work, {row.root_id: [Dependency(root, status) for root, status in states.items()]})
