"""Implements the operations on tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, Unpack

import msgspec

from shiftwork import tracing
from shiftwork.engine import change, event_log, read, results
from shiftwork.engine import rerun as rerunning
from shiftwork.engine import submit as submitting
from shiftwork.engine.api import Batch, Everyday, Results, Submissions, Tasks
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.new_dags import NO_DAG, DagFields
from shiftwork.engine.prepare import Plans, Prepared, has_schema, prepare, traced
from shiftwork.engine.rerun import Again
from shiftwork.engine.submit import ceiling, lanes_of
from shiftwork.model import check, gc_pause, ids
from shiftwork.model.errors import NotFound, TooLarge
from shiftwork.model.history import Attempt, EventPage, History, Transition
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, STORED
from shiftwork.model.task import Changes, NewDag, NewTask, Page, Result, Submitted, Task
from shiftwork.model.times import Duration, seconds
from shiftwork.observe import explain as explaining
from shiftwork.observe import status as overview
from shiftwork.observe.model import Explanation, Status
from shiftwork.operation.local import Call, implements, reading
from shiftwork.search import selection, short_ids
from shiftwork.search.model import Conditions, TaskFilter
from shiftwork.store.store import Row, Tx, record


@implements(Submissions.submit)
async def submit(call: Call, task: NewTask | list[NewTask]) -> Submitted | list[Submitted]:
    if isinstance(task, list):
        return await submit_batch(call, task, NO_DAG)
    (prepared,) = await _prepare(call, [task])
    if call.connection is not None:
        return (await _submit_joining(call, [prepared], NO_DAG))[0]
    await call.engine.lanes.intern(call.engine.store, (prepared.lane,))
    if call.caller.idempotency is not None or task.key is not None or task.dependencies:
        return (await call.run(submitting.submit, call.workspace, [prepared]))[0]
    if call.caller.request_id is not None:
        prepared = prepared._replace(request_id=call.caller.request_id)
    answer: Submitted = await call.coalescer(_submit_lone).call(prepared)
    return answer


def _submit_lone(call: Call, batch: Sequence[Prepared]) -> Coroutine[Any, Any, Sequence[Submitted]]:
    return call.run(submitting.submit, call.workspace, batch)


@implements(Submissions.submit_dag)
async def submit_dag(call: Call, dag: NewDag) -> list[Submitted]:
    check.text(dag.title, "dag.title")
    check.text(dag.created_by, "dag.created_by")
    together = DagFields(
        together=True, title=dag.title, created_by=dag.created_by, budget_ceiling=ceiling(dag.budget_ceiling_usd)
    )
    tasks = [
        msgspec.structs.replace(task, created_by=dag.created_by) if task.created_by is None else task
        for task in dag.tasks
    ]
    return await submit_batch(call, tasks, together)


async def submit_batch(call: Call, tasks: Sequence[NewTask], dag: DagFields) -> list[Submitted]:
    batch = await _prepare(call, tasks)
    if not batch:
        return []
    if call.connection is not None:
        return await _submit_joining(call, batch, dag)
    await call.engine.lanes.intern(call.engine.store, lanes_of(batch))
    return await call.run(submitting.submit, call.workspace, batch, dag=dag)


async def _submit_joining(call: Call, batch: Sequence[Prepared], dag: DagFields) -> list[Submitted]:
    """Submit in the caller's transaction. New lanes get a separate transaction if the store allows two writers."""
    if call.engine.store.one_writer:
        return await call.run(_submit_with_lanes, call.workspace, batch, dag)
    await call.engine.lanes.intern(call.engine.store, lanes_of(batch))
    return await call.run(submitting.submit, call.workspace, batch, dag=dag)


async def _submit_with_lanes(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, batch: Sequence[Prepared], dag: DagFields
) -> list[Submitted]:
    lanes = await engine.lanes.intern_in(tx, lanes_of(batch))
    return await submitting.submit(tx, engine, caller, workspace, batch, lanes, dag)


async def _prepare(call: Call, tasks: Sequence[NewTask]) -> list[Prepared]:
    resolver = await call.engine.settings_cache.get(call.engine.store, call.workspace)
    most = resolver.settings().bounds.batch
    if len(tasks) > most:
        raise TooLarge(f"{len(tasks)} tasks in one batch, at most {most}", where="tasks")
    alone = len(tasks) == 1
    prepared: list[Prepared] = []
    plans: Plans = resolver.plans
    workspace, now = call.workspace, call.engine.store.now()
    with tracing.span("submit", "producer", tasks=len(tasks)), gc_pause.put_off(len(tasks)):
        origin = tracing.current()
        for place, task in enumerate(tasks):
            where = "task" if alone else f"tasks[{place}]"
            new = task if origin is None else traced(task, origin)
            prepared.append(prepare(new, workspace, resolver, now, where, plans))
            if has_schema(new, resolver):
                await asyncio.sleep(0)  # as `yield_to_loop` says
                now = call.engine.store.now()
    return prepared


@reading(Everyday.get)
async def get(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str) -> Task:
    found = await get_many(tx, engine, caller, workspace, [task_id])
    if not found and (uuid := await short_ids.find(tx, workspace, task_id)):
        found = await read.tasks(tx, engine, workspace, [uuid])
    if not found:
        raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
    return found[0]


@reading(Batch.get)
async def get_many(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_ids: Sequence[str]) -> list[Task]:
    found = await read.find_many(tx, workspace, task_ids)
    return await read.tasks(tx, engine, workspace, [uuid for uuid in found if uuid is not None])


@implements(Results.result)
async def result(call: Call, task_id: str, *, wait: float = 0) -> Result:
    async def look() -> Task:
        return await call.read(lambda tx: results.answering_task(tx, call.engine, call.workspace, task_id))

    task = await look()
    if wait > 0 and not results.has_ended(task):
        task = await call.until("task", results.lineage_of(task), look, results.has_ended, wait)
    return results.result_of(task)


@reading(Everyday.explain)
async def explain(tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str) -> Explanation:
    return await explaining.explain(tx, engine, workspace, await read.find(tx, workspace, task_id))


@implements(Everyday.events)
async def events(  # a filter each
    call: Call,
    after: int | Literal["now"] = 0,
    *,
    limit: int = 1000,
    wait: Duration = 0,
    task: str | Sequence[str] | None = None,
    dag: str | Sequence[str] | None = None,
    type: str | Sequence[str] | None = None,
    verb: str | Sequence[str] | None = None,
) -> EventPage:
    store, loop = call.engine.store, asyncio.get_running_loop()
    wanted: dict[str, Sequence[str]] = {
        "task_id": [await call.find(name) for name in _several(task)],
        "dag_id": [read.find_dag(name) for name in _several(dag)],
        "type": _several(type),
        "verb": _several(verb),
    }
    filters = [(column, frozenset(values)) for column, values in wanted.items() if values]
    cursor = await event_log.newest(store) if after == "now" else after
    deadline = loop.time() + seconds(wait)
    while True:
        call.require_here()
        part = await event_log.read(store, cursor, limit, call.workspace)
        found = [row for row in part.rows if all(row[column] in values for column, values in filters)]
        left, at_end, cursor = deadline - loop.time(), part.last == cursor, part.last
        if found or (at_end and left <= 0):
            return EventPage([read.event(row) for row in found], cursor)
        if at_end:
            await call.shared.event_waiters.park(cursor, left)


def _several(words: str | Sequence[str] | None) -> Sequence[str]:
    return [words] if isinstance(words, str) else words or ()


@implements(Everyday.status)
async def status(call: Call, *, fresh: bool = False) -> Status:
    shared = call.shared
    async with shared.counting:  # concurrent callers share one count
        known = None if fresh else shared.counted.get(call.workspace)
        found, counted = await call.read(lambda tx: overview.read(tx, call.engine, call.workspace, known))
        shared.counted[call.workspace] = counted
    return found


@implements(Everyday.cancel)
async def cancel(call: Call, task_id: str, reason: str = "cancelled", *, version: int | None = None) -> Outcome:
    (outcome,) = await cancel_many(call, [task_id], reason, version=version)
    return outcome.unwrap()


@implements(Batch.cancel)
async def cancel_many(
    call: Call, task_ids: Sequence[str], reason: str = "cancelled", *, version: int | None = None
) -> list[Outcome]:
    found = await call.find_many(task_ids)
    known = [uuid for uuid in found if isinstance(uuid, str)]
    done = iter(await call.run(change.cancel, known, reason, version) if known else ())
    return [
        next(done) if isinstance(uuid, str) else Outcome(ids.shown(task_id), error=uuid)
        for task_id, uuid in zip(task_ids, found, strict=True)
    ]


@implements(Tasks.update)
async def update(
    call: Call, task_id: str, changes: Changes | Mapping[str, Any], *, version: int | None = None
) -> Outcome:
    assert isinstance(changes, Changes)
    return await call.run(change.update, await call.find(task_id), check.fit(changes, "changes"), version)


@implements(Tasks.rerun)
async def rerun(
    call: Call,
    task_id: str,
    *,
    from_step: str | None = None,
    payload: Mapping[str, Any] | None = None,
    model: str | None = None,
    downstream: bool = False,
) -> Outcome:
    again = Again(from_step, payload, model, downstream)
    return await call.run(rerunning.rerun, await call.find(task_id), again)


@implements(Tasks.rerun_issue)
async def rerun_issue(call: Call, issue_id: str, task_id: str | None = None) -> Outcome:
    if task_id is None:
        row = await call.read(lambda tx: tx.one("newest_of_issue", workspace=call.workspace, issue=issue_id))
        if row is None:
            raise NotFound(f"issue {issue_id!r} has no task", where="issue_id")
        return await call.run(rerunning.rerun, row["id"])
    (uuid,) = await call.find_many([task_id])
    known = [(uuid,)] if isinstance(uuid, str) else []
    named = await call.read(lambda tx: tx.one("read_tasks", items=known))
    if named is None or named["issue_id"] != issue_id:
        raise NotFound(f"issue {issue_id!r} has no task {task_id!r}", where="task_id")
    return await call.run(rerunning.rerun, uuid)


@reading(Tasks.history)
async def history(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, task_id: str, *, limit: int = 1000
) -> History:
    uuid = await read.find(tx, workspace, task_id)
    moves = [row for row in await tx.all("moves_of_task", id=uuid) if row["workspace"] == workspace]
    if not moves:
        raise NotFound(f"there is no task {task_id!r}", task_id=task_id)
    rows = await tx.all("events_of_task", id=uuid, after=0, count=limit)
    return History(
        [step for row in moves for step in _transitions(row)],
        [read.event(row) for row in rows if row["workspace"] == workspace],
        await _attempts(tx, engine, workspace, uuid),
    )


async def _attempts(tx: Tx, engine: Engine, workspace: str, uuid: str) -> list[Attempt]:
    with suppress(NotFound):  # a purged task has left only its events
        await read.must_exist(tx, engine, workspace, uuid)
        return [read.attempt(row) for row in await tx.all("read_attempts", items=[(uuid,)])]
    return []


def _transitions(row: Row) -> list[Transition]:
    return [
        record(Transition, row, from_status=before, to_status=after)
        for before, after in pairwise(row["path"].split(">"))
    ]


@reading(Tasks.count_by_tag)
async def count_by_tag(tx: Tx, engine: Engine, caller: Caller, workspace: str, tag: str) -> dict[str, int]:
    counts = {row["status"]: int(row["total"]) for row in await tx.all("tag_counts", workspace=workspace, tag=tag)}
    done = sum(total for status, total in counts.items() if status in FINAL)
    return {**counts, "done": done, "total": sum(counts.values())}


@implements(Tasks.list)
async def list_tasks(
    call: Call, *, after: str | None = None, limit: int = 100, newest: bool = False, **conditions: Unpack[Conditions]
) -> Page:
    wanted = _filter(conditions)

    async def load(tx: Tx) -> Page:
        cursor = None if after is None else await read.find(tx, call.workspace, after)
        chosen = await selection.select(tx, call.workspace, wanted)
        uuids = await chosen.page(tx, cursor, limit, newest=newest)
        tasks = await read.tasks(tx, call.engine, call.workspace, uuids)
        return Page(tasks, tasks[-1].id if len(uuids) == limit else None, chosen.lag)

    return await call.read(load)


def _filter(conditions: Conditions) -> selection.CheckedFilter:
    status = conditions.get("status")
    listed = status if status is None or isinstance(status, str) else list(status)
    fields: dict[str, Any] = {**conditions, "status": listed}
    return selection.checked(TaskFilter(**fields))


@implements(Tasks.count)
async def count_tasks(call: Call, **conditions: Unpack[Conditions]) -> dict[str, int]:
    wanted = _filter(conditions)

    async def count(tx: Tx) -> dict[str, int]:
        if wanted.is_kept:  # finished tasks are not read for it
            counted = await overview.count_tasks(tx, call.engine, call.workspace, None)
            found = counted.counts if wanted.where.type is None else counted.types.get(wanted.where.type, {})
            return {str(each): found[each] for each in wanted.statuses or STORED if found.get(each)}
        return await (await selection.select(tx, call.workspace, wanted)).counts(tx)

    return await call.read(count)
