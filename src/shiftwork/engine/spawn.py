"""Adds subtasks to the running task's own DAG; the parent continues or waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.engine import critical_path
from shiftwork.engine.dependencies import Dependency, refuse_outer_cycle, resolve
from shiftwork.engine.dependents import apply_ended_dependencies
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.failed_ends import ENDS, failed_dependencies, failed_ends
from shiftwork.engine.new_dags import DagFields
from shiftwork.engine.prepare import Prepared
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.submit import Origin, submit
from shiftwork.engine.unit_of_work import UnitOfWork, as_json
from shiftwork.limits import capacity
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound, SpawnLimit
from shiftwork.model.outcome import Token
from shiftwork.model.states import State
from shiftwork.model.task import FailedDependency, Submitted
from shiftwork.settings.model import Spawn
from shiftwork.steps import operations as steps
from shiftwork.store.store import Tx
from shiftwork.waits.model import WaitResult
from shiftwork.waits.open_waits import claimed, suspend

SUBTASKS = "subtasks"
"""The step stored by a named spawn: the ids of its subtasks."""


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
    any_end: bool = False,
) -> list[Submitted]:
    """Add subtasks under a live claim. With `wait`, the parent frees its slot until they are all completed.

    With `any_end`, it resumes once they have all ended, whatever the outcome.

    A named spawn happens once in the life of the task: a repeat returns the subtasks of the first call.
    """
    if caller.workspace is not None:
        await capacity.enter(tx, engine, caller.workspace)
    work = UnitOfWork(tx, engine, caller)
    row = await claimed(work, token, need_running=wait)
    if name is not None and (before := await _spawned_before(work, row, token, name)) is not None:
        return await _answer_again(work, row, before, wait=wait, any_end=any_end)
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
    # A subtask that depends on its own parent would never run, whether or not the parent waits for it.
    await tx.advisory_lock(f"edges:{row.workspace}")
    found = await resolve(tx, row.workspace, {each: each for each in subtasks})
    await refuse_outer_cycle(work, {row.root_id: [dependency.root for dependency in found.values()]})
    if wait:
        failed = await _park_unless_done(work, row, list(found.values()), any_end=any_end)
        made = [_as_found(work, each, found, failed) for each in made]
    await work.save()
    return made


def _as_found(
    work: UnitOfWork, made: Submitted, found: Mapping[str, Dependency], failed: Mapping[str, FailedDependency]
) -> Submitted:
    """The subtask's current state: an existing one may have moved, and the state tells the caller whether it waits."""
    dependency = found.get(ids.parse(made.id) or "")
    if not made.duplicate or dependency is None:
        return made
    return msgspec.structs.replace(made, status=_seen_status(work, dependency, failed))


async def _spawned_before(
    work: UnitOfWork, row: TaskRow, token: Token, name: str
) -> list[tuple[str, Dependency]] | None:
    """The subtasks stored under this name, in order; None if nothing was spawned under it."""
    kept = await steps.recall(work.tx, token, name)
    if kept is None:
        return None
    known = msgspec.json.decode(kept)
    if not isinstance(known, dict) or SUBTASKS not in known:
        hint = "Give the spawn a name of its own."
        raise InputError(f"the step {name!r} of this task spawned nothing", where="name", hint=hint)
    found = await resolve(work.tx, row.workspace, {each: each for each in known[SUBTASKS]})
    return [(each, found.get(each) or _purged(each)) for each in known[SUBTASKS]]


def _purged(task_id: str) -> Dependency:
    """A purged subtask: it ended, and its result is gone."""
    return Dependency(ids.parse(task_id) or task_id, State.CANCELLED, missing=True)


async def _purged_before(tx: Tx, workspace: str, task_ids: Sequence[str]) -> dict[str, Dependency]:
    named = {uuid: each for each in task_ids if (uuid := ids.parse(each)) is not None}
    rows = await tx.all("purged", items=sorted((uuid,) for uuid in named)) if named else ()
    return {named[row["id"]]: _purged(row["id"]) for row in rows if row["workspace"] == workspace}


async def _answer_again(
    work: UnitOfWork, row: TaskRow, before: Sequence[tuple[str, Dependency]], *, wait: bool, any_end: bool
) -> list[Submitted]:
    """Repeat the answer of the first call. Subtasks that are done are not awaited again."""
    before = [each for each in before if any_end or not each[1].missing]
    states = {each: _status(work, dependency) for each, dependency in before}
    if wait:
        await work.tx.advisory_lock(f"edges:{row.workspace}")
        failed = await _park_unless_done(work, row, [dependency for _, dependency in before], any_end=any_end)
        states = {each: _seen_status(work, dependency, failed) for each, dependency in before}
    await work.save()
    dag = ids.show_dag(row.dag_id)
    return [Submitted(each, states[each], duplicate=True, dag_id=dag) for each, _ in before]


async def _trace_of(tx: Tx, row: TaskRow) -> str | None:
    body = await tx.one("read_bodies", items=[(row.id,)])
    return None if body is None else msgspec.json.decode(body["body"]).get("traceparent")


def _signed(prepared: Prepared, passed_on: Mapping[str, str | None]) -> Prepared:
    """The parent's agent is the creator, in the parent's trace, unless the caller says otherwise."""
    own = {name: value for name, value in passed_on.items() if value and getattr(prepared.new, name) is None}
    if not own:
        return prepared
    new = msgspec.structs.replace(prepared.new, **own)
    body = as_json({**msgspec.json.decode(prepared.body), **own})
    return prepared._replace(new=new, body=body)


async def wait_for(
    tx: Tx, engine: Engine, caller: Caller, token: Token, references: Sequence[str], *, any_end: bool = False
) -> WaitResult:
    """Free the slot until these tasks are done; if they already are, the task keeps it and continues.

    With `any_end`, they are done once they have ended, whatever the outcome.
    """
    work = UnitOfWork(tx, engine, caller)
    row = await claimed(work, token, need_running=True)
    found = await resolve(tx, row.workspace, {name: name for name in references})
    if any_end:
        found |= await _purged_before(tx, row.workspace, [name for name in references if name not in found])
    unknown = [name for name in references if name not in found]
    if unknown:
        raise NotFound(f"there is no task {unknown[0]!r}", where="tasks")
    await tx.advisory_lock(f"edges:{row.workspace}")
    await refuse_outer_cycle(work, {row.root_id: [dependency.root for dependency in found.values()]})
    failed = await _park_unless_done(work, row, list(found.values()), any_end=any_end)
    await work.save()
    roots = dict.fromkeys(found[name].root for name in references)
    return WaitResult(row.status, failed=[failed[root] for root in roots if root in failed])


async def _refuse_deep(work: UnitOfWork, row: TaskRow, limits: Spawn) -> None:
    """Bound the depth of tasks that spawn tasks."""
    above = await work.tx.one("ancestors_of", id=row.id, most=limits.max_depth)
    if above is not None and above["depth"] >= limits.max_depth:
        raise SpawnLimit(
            f"task {ids.show_task(row.id)} is {above['depth']} levels deep; the maximum is {limits.max_depth}",
            where="tasks",
            limit="spawn.max_depth",
        )


async def _refuse_many(work: UnitOfWork, row: TaskRow, limits: Spawn) -> None:
    """Check after they are written, so that duplicates count once."""
    below = await work.tx.one("count_subtasks", id=row.id)
    if below is not None and below["subtasks"] > limits.max_subtasks:
        raise SpawnLimit(
            f"task {ids.show_task(row.id)} would have {below['subtasks']} subtasks, at most {limits.max_subtasks}",
            where="tasks",
            limit="spawn.max_subtasks",
        )


def _status(work: UnitOfWork, dependency: Dependency) -> str:
    """The state set by this verb: its cancellations are not saved yet."""
    root = work.rows.get(dependency.root)
    return root.status if root is not None and root.newest_id is None else dependency.status


def _seen_status(work: UnitOfWork, dependency: Dependency, failed: Mapping[str, FailedDependency]) -> str:
    """The state as the parent sees it: a failure that let it continue stays one, even if the task was retried since."""
    known = failed.get(dependency.root)
    return _status(work, dependency) if known is None else known.status


async def _park_unless_done(
    work: UnitOfWork, row: TaskRow, above: Sequence[Dependency], *, any_end: bool
) -> dict[str, FailedDependency]:
    """Suspend the task, unless nothing is left to wait for: then the claim holds and the work continues.

    With `any_end`, pass what has ended without success, by the root of its lineage.
    """
    states = {each.root: _status(work, each) for each in above}
    failed = await _failed(work, row, above) if any_end else {}
    if any(status != State.COMPLETED for root, status in states.items() if root not in failed):
        await _suspend(work, row, states, failed, any_end=any_end)
    elif failed:
        await _wait_edges(work, row, states, failed, any_end=True)
    return failed


async def _failed(work: UnitOfWork, row: TaskRow, above: Sequence[Dependency]) -> dict[str, FailedDependency]:
    """Those that failed and that the parent has continued without before, or has ended without success by now."""
    wanted = {each.root for each in above}
    edges = [edge for edge in await work.tx.all("edges_of", items=[(row.root_id,)]) if edge["dependency"] in wanted]
    seen = {ids.parse(each.task_id) or "": each for each in failed_dependencies(edges)}
    gone = [each for each in above if each.missing and each.root not in seen]
    purged = {each.root: FailedDependency(ids.show_task(each.root), "cancelled", "purged") for each in gone}
    ended = {each.root for each in above if _status(work, each) in ENDS}
    return {**await failed_ends(work, ended - seen.keys() - purged.keys()), **seen, **purged}


async def _wait_edges(
    work: UnitOfWork,
    row: TaskRow,
    states: Mapping[str, str],
    failed: Mapping[str, FailedDependency],
    *,
    any_end: bool,
) -> None:
    """Make the parent depend on these. Failures so far are recorded as they are now."""
    edges = []
    for root, status in sorted(states.items()):
        failure = as_json(failed[root]) if root in failed else None
        satisfied = root in failed or status == State.COMPLETED
        edges.append((row.root_id, root, satisfied, True, any_end, failure))
    await work.tx.insert("insert_waits_for", edges)


async def _suspend(
    work: UnitOfWork,
    row: TaskRow,
    states: Mapping[str, str],
    failed: Mapping[str, FailedDependency],
    *,
    any_end: bool,
) -> None:
    """Wait for these: the parent resumes when the last one completes or ends, without a counted attempt."""
    roots = sorted(states)
    await critical_path.lengthen(work, dict.fromkeys(roots, row.path_weight + 1))
    await _wait_edges(work, row, states, failed, any_end=any_end)
    await suspend(work, row, {"for": [ids.show_task(root) for root in roots]})
    left = [Dependency(root, status) for root, status in states.items() if root not in failed]
    await apply_ended_dependencies(work, {row.root_id: left})
