"""Assigns new tasks to DAGs: writes the rows of new DAGs, and joins existing ones."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shiftwork.engine.dependencies import Dependency
from shiftwork.engine.new_rows import NewDag
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import graph, ids
from shiftwork.model.errors import NotFound


class DagFields(NamedTuple):
    """The fields of a batch as a whole."""

    together: bool = False
    """One DAG for all tasks, even if no edge connects them."""
    title: str | None = None
    created_by: str | None = None
    budget_ceiling: int | None = None
    join: str | None = None
    """An existing DAG to be added to."""


NO_DAG = DagFields()


async def assign(
    work: UnitOfWork, workspace: str, new: list[str], edges: dict[str, list[Dependency]], dag: DagFields
) -> tuple[dict[str, str], set[str]]:
    """The DAG of each task, and which of these existed before; standalone tasks are left out.

    Writes empty rows of new DAGs. Tasks submitted as a DAG stay in it, whatever they depend on.
    """
    groups: list[list[str]] = []
    joined: dict[str, str] = {}
    if dag.join is not None:
        joined = dict.fromkeys(new, dag.join)
    elif dag.together:
        groups = [new] if new else []
    else:
        roots = {dependent: [dependency.root for dependency in above] for dependent, above in edges.items()}
        groups, joined = _joining(graph.components(roots), edges)
    for dag_id in sorted({*joined.values(), *([dag.join] if dag.join is not None else [])}):
        await _join(work, workspace, dag_id)
    made: dict[str, str] = {}
    written = []
    for group, id_ in zip(groups, work.engine.ids.make_many(work.now, len(groups)), strict=True):
        written.append(NewDag(id_, workspace, dag.title, dag.created_by or work.caller.actor, work.now))
        made.update(dict.fromkeys(group, id_))
    await work.tx.insert("insert_dags", written)
    return made | joined, set(joined.values())


def _joining(groups: list[list[str]], edges: dict[str, list[Dependency]]) -> tuple[list[list[str]], dict[str, str]]:
    """Groups that form a new DAG, and for each task that joins an existing one, the DAG of its first dependency
    there.
    """
    fresh, joined = [], {}
    for group in groups:
        found = next((p.dag_id for id_ in group for p in edges[id_] if p.dag_id is not None), None)
        if found is not None:
            joined.update(dict.fromkeys(group, found))
        elif len(group) > 1:
            fresh.append(group)
    return fresh, joined


async def _join(work: UnitOfWork, workspace: str, dag_id: str) -> None:
    """Make sure the DAG has a row; that of a standalone task is written when another task joins."""
    locked = await work.tx.all("lock_dags", items=[(dag_id,)])
    if not locked:  # a standalone task that ends now must find the row we write
        await work.tx.all("lock_tasks", items=[(dag_id,)])
        locked = await work.tx.all("lock_dags", items=[(dag_id,)])
    if locked and locked[0]["workspace"] == workspace:
        return
    rows = [row for row in await work.tx.all("tasks_of_dag", dag=dag_id) if row["workspace"] == workspace]
    if not rows:
        raise NotFound(f"there is no DAG {ids.show_dag(dag_id)}", where="dag_id")
    found = await work.tx.one("read_bodies", items=[(dag_id,)])
    body = msgspec.json.decode(found["body"]) if found else {}
    author = body.get("created_by") or work.caller.actor
    await work.tx.insert("insert_dags", [NewDag(dag_id, workspace, body.get("title"), author, work.now)])
    newest = {row["root_id"]: row["newest_id"] for row in rows if row["newest_id"]}
    for row in rows:
        if newest.get(row["root_id"], row["id"]) == row["id"]:
            work.count_in_dag(dag_id, None, row["status"])
