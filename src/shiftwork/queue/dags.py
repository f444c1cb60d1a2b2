"""DAGs as a list, and what may be changed about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.task import Dollars, Fields, Text, dollars, micros
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.money import budgets
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

DagStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
STATUSES: tuple[str, ...] = get_args(DagStatus)
_NEWEST = (1e308, "ffffffff-ffff-ffff-ffff-ffffffffffff")


class DagSummary(msgspec.Struct, frozen=True):
    """A DAG without its tasks. What was moved to the archive is counted no more."""

    id: str
    workspace_id: str
    title: str | None
    created_by: str | None
    status: DagStatus
    done: int
    total: int
    settled: int
    """Tasks that only a person can move on."""
    budget_ceiling_usd: float | None
    spent_usd: float
    created_at: float
    finished_at: float | None


class DagPage(msgspec.Struct, frozen=True):
    """A page of DAGs; `next` is the cursor of the following one."""

    dags: list[DagSummary]
    next: str | None


class DagChanges(Fields):
    """What may be changed about a DAG. A field that is not given stays; null empties it."""

    title: Text | msgspec.UnsetType | None = msgspec.UNSET
    budget_ceiling_usd: Dollars | msgspec.UnsetType | None = msgspec.UNSET


async def page(tx: Tx, workspace: str, status: str | None, after: str | None, count: int) -> DagPage:
    """DAGs of more than one task, newest first."""
    found: list[DagSummary] = []
    place = _NEWEST if after is None else await _place(tx, workspace, after)
    stored = "open" if status in {"pending", "running"} else status
    while True:
        name = "list_dags" if stored is None else "list_dags_in"
        filters: dict[str, Any] = {} if stored is None else {"status": stored}
        rows = await tx.all(name, workspace=workspace, created_at=place[0], id=place[1], count=count, **filters)
        for dag in await _summaries(tx, rows):
            if status in {None, dag.status}:
                found.append(dag)
                if len(found) == count:
                    return DagPage(found, dag.id)
        if len(rows) < count:
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
    return DagSummary(
        id=ids.show_dag(row["id"]),
        workspace_id=row["workspace"],
        title=row["title"],
        created_by=row["created_by"],
        status=row["status"] if row["status"] != "open" else "running" if started else "pending",
        done=total - row["open"] if total else 0,
        total=total,
        settled=row["settled"],
        budget_ceiling_usd=None if ceiling is None else dollars(ceiling),
        spent_usd=dollars(int(totals["spent"])) if totals else 0.0,
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


async def update(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, dag_id: str, changes: DagChanges
) -> DagSummary:
    """Change a DAG's title or ceiling; a lone task is its own DAG and has neither."""
    if changes.budget_ceiling_usd is not msgspec.UNSET:
        await tx.all("lock_tasks", items=[(dag_id,)])  # tasks before DAGs, DAGs before budgets
    locked = await tx.all("lock_dags", items=[(dag_id,)])
    if not locked or locked[0]["workspace"] != workspace:
        shown = ids.show_dag(dag_id)
        raise NotFound(f"there is no DAG {shown} of more than one task", dag_id=shown)
    (before,) = await _summaries(tx, locked)
    work = Work(tx, engine, caller)
    title, ceiling = changes.title, changes.budget_ceiling_usd
    if title is not msgspec.UNSET:
        await tx.run("change_dag", id=dag_id, title=title)
    if ceiling is not msgspec.UNSET:
        await budgets.change(work, workspace, "dag", dag_id, None if ceiling is None else micros(ceiling))
    (after,) = await _summaries(tx, await tx.all("lock_dags", items=[(dag_id,)]))
    given = [name for name in DagChanges.__struct_fields__ if getattr(changes, name) is not msgspec.UNSET]
    said = {name: {"from": getattr(before, name), "to": getattr(after, name)} for name in given}
    work.tell_of(workspace, "dag_updated", dag_id=dag_id, data=said)
    await work.save_events()
    return after
