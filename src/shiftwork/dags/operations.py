"""Lists and updates DAGs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shiftwork.budgets import operations as budgets
from shiftwork.dags.api import Dags
from shiftwork.dags.model import DagChanges, DagPage, DagStatus, DagSummary
from shiftwork.engine import change, read
from shiftwork.engine.api import Results
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.new_dags import DagFields
from shiftwork.engine.operations import submit_batch
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError, NotFound, ResultTimeout
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import SETTLED, State
from shiftwork.model.task import Dag, DagResult, DagTask, NewTask, Submitted, Task, dollars, micros
from shiftwork.operation.local import Call, implements, reading, transaction
from shiftwork.store.store import Row, Tx, record

_NEWEST = (1e308, "ffffffff-ffff-ffff-ffff-ffffffffffff")


@reading(Dags.list)
async def list_dags(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    *,
    status: DagStatus | None = None,
    after: str | None = None,
    limit: int = 100,
) -> DagPage:
    found: list[DagSummary] = []
    place = _NEWEST if after is None else await _place(tx, workspace, read.find_dag(after))
    stored = "open" if status in {"pending", "running"} else status
    while True:
        name = "list_dags" if stored is None else "list_dags_in"
        filters: dict[str, Any] = {} if stored is None else {"status": stored}
        rows = await tx.all(name, workspace=workspace, created_at=place[0], id=place[1], count=limit, **filters)
        for dag in await _summaries(tx, rows):
            if status in {None, dag.status}:
                found.append(dag)
                if len(found) == limit:
                    return DagPage(found, dag.id)
        if len(rows) < limit:
            return DagPage(found, None)
        place = rows[-1]["created_at"], rows[-1]["id"]


async def _place(tx: Tx, workspace: str, dag_id: str) -> tuple[float, str]:
    row = await tx.one("read_dag", id=dag_id)
    if row is None or row["workspace"] != workspace:
        raise NotFound(f"there is no DAG {ids.show_dag(dag_id)}", where="after")
    return row["created_at"], row["id"]


async def _summaries(tx: Tx, rows: Sequence[Row]) -> list[DagSummary]:
    items = [(row["id"],) for row in rows]
    if not items:
        return []
    totals = {row["dag_id"]: row for row in await tx.all("dag_totals", items=items)}
    named = [(row["workspace"], row["id"]) for row in rows]
    ceilings = {row["dag_id"]: row["ceiling"] for row in await tx.all("dag_ceilings", items=named)}
    return [_summary(row, totals.get(row["id"]), ceilings.get(row["id"])) for row in rows]


def _summary(row: Row, totals: Row | None, ceiling: int | None) -> DagSummary:
    total = int(totals["total"]) if totals else 0
    started = totals is not None and totals["fence"] > 0
    return record(
        DagSummary,
        row,
        id=ids.show_dag(row["id"]),
        workspace_id=row["workspace"],
        status=row["status"] if row["status"] != "open" else "running" if started else "pending",
        done=total - row["open"] if total else 0,
        total=total,
        budget_ceiling_usd=None if ceiling is None else dollars(ceiling),
        spent_usd=dollars(int(totals["spent"])) if totals else 0.0,
    )


async def _update(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, dag_id: str, changes: DagChanges
) -> DagSummary:
    """Change a DAG's title or ceiling; a standalone task is its own DAG and has neither."""
    if changes.budget_ceiling_usd is not msgspec.UNSET:
        await tx.all("lock_tasks", items=[(dag_id,)])  # tasks before DAGs, DAGs before budgets
    locked = await tx.all("lock_dags", items=[(dag_id,)])
    if not locked or locked[0]["workspace"] != workspace:
        shown = ids.show_dag(dag_id)
        raise NotFound(f"there is no DAG {shown} of more than one task", dag_id=shown)
    (before,) = await _summaries(tx, locked)
    work = UnitOfWork(tx, engine, caller)
    title, ceiling = changes.title, changes.budget_ceiling_usd
    if title is not msgspec.UNSET:
        await tx.run("change_dag", id=dag_id, title=title)
    if ceiling is not msgspec.UNSET:
        await budgets.change(work, workspace, "dag", dag_id, None if ceiling is None else micros(ceiling))
    (after,) = await _summaries(tx, await tx.all("lock_dags", items=[(dag_id,)]))
    given = [name for name in DagChanges.__struct_fields__ if getattr(changes, name) is not msgspec.UNSET]
    changed = {name: {"from": getattr(before, name), "to": getattr(after, name)} for name in given}
    work.emit_for(workspace, "dag_updated", dag_id=dag_id, data=changed)
    await work.save_events()
    return after


@reading(Dags.get)
async def get(tx: Tx, engine: Engine, caller: Caller, workspace: str, dag_id: str) -> Dag:
    return await read.dag(tx, workspace, read.find_dag(dag_id))


@implements(Results.dag_result)
async def result(call: Call, dag_id: str, *, wait: float = 0) -> DagResult:
    uuid = read.find_dag(dag_id)

    async def look() -> Dag:
        return await call.read(lambda tx: read.dag(tx, call.workspace, uuid))

    dag = await look()
    if wait > 0 and not _has_ended(dag):
        dag = await call.until("dag", uuid, look, _has_ended, wait)
    if dag.status in {"pending", "running"}:
        raise ResultTimeout(
            f"DAG {dag.id} has not ended: {dag.done} of {dag.total} tasks are done",
            hint=f"Wait longer, or run `shiftwork dags show {dag.id}` to see its tasks.",
            dag_id=dag.id,
            status=dag.status,
        )
    return await call.read(lambda tx: _result(tx, call.engine, call.workspace, uuid, dag))


def _has_ended(dag: Dag) -> bool:
    return dag.status not in {"pending", "running"}


async def _result(tx: Tx, engine: Engine, workspace: str, uuid: str, dag: Dag) -> DagResult:
    rows = [row for row in await tx.all("tasks_of_dag", dag=uuid) if row["workspace"] == workspace]
    newest = {row["id"]: row["newest_id"] or row["id"] for row in rows if row["id"] == row["root_id"]}
    tasks = {task.id: task for task in await read.tasks(tx, engine, workspace, sorted(newest.values()))}
    of = [(root, tasks[shown]) for root, each in newest.items() if (shown := ids.show_task(each)) in tasks]
    return DagResult(dag.id, dag.status, [_task(ids.show_task(root), task) for root, task in of])  # type: ignore[arg-type]  # it has ended


def _task(root: str, task: Task) -> DagTask:
    """The id of the submission, whichever row is current now."""
    failed = task.status in SETTLED
    return DagTask(
        id=root,
        type=task.type,
        title=task.title,
        status=task.status,
        output=task.result.output if task.result and task.status == State.COMPLETED else None,
        error=task.last_error if failed else None,
        reason=task.failure_reason if failed else task.cancel_reason,
        ended_at=task.finished_at or (task.failed_at if failed else None),
    )


@implements(Dags.add_tasks)
async def add_tasks(call: Call, dag_id: str, tasks: Sequence[NewTask | Mapping[str, Any]]) -> list[Submitted]:
    new = [task for task in tasks if isinstance(task, NewTask)]
    return await submit_batch(call, new, DagFields(join=read.find_dag(dag_id)))


@implements(Dags.update)
async def update(call: Call, dag_id: str, changes: DagChanges | Mapping[str, Any]) -> DagSummary:
    assert isinstance(changes, DagChanges)
    check.fit(changes, "changes")
    if changes == DagChanges():
        raise InputError("there is nothing to change", where="changes")
    uuid = read.find_dag(dag_id)
    changed = await call.run(_update, call.workspace, uuid, changes)
    more = changes.budget_ceiling_usd is not msgspec.UNSET
    while more:
        _, more = await call.run(budgets.settle_budget, call.workspace, "dag", uuid)
    return changed


@transaction(Dags.cancel)
async def cancel(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, dag_id: str, reason: str = "cancelled"
) -> list[Outcome]:
    return await change.cancel_dag(tx, engine, caller, workspace, read.find_dag(dag_id), reason)
