"""Which budget new tasks belong to: their own tree's, their parent's, or their DAG's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.task import NewTask, micros


class NewBudget(NamedTuple):
    """The fields are the columns of the statement `insert_budgets`."""

    id: str
    workspace: str
    kind: str
    owner: str
    parent_id: str | None = None
    ceiling: int | None = None
    spent: int = 0
    counted_to: str | None = None
    """The task up to which existing tasks are counted in; None once all are."""


async def assign_budgets(
    work: UnitOfWork, workspace: str, tasks: Mapping[str, NewTask], dag_id: str, ceiling: int | None, above: str | None
) -> dict[str, str]:
    """By task, its budget: tasks of a new DAG with this ceiling, of one they join, or each alone with its own."""
    if above is None and dag_id:
        above = await _of_dag(work, workspace, dag_id, ceiling)
    under = {} if above is None else dict.fromkeys(tasks, above)
    trees = [(id_, micros(new.tree_budget_usd)) for id_, new in tasks.items() if new.tree_budget_usd is not None]
    made = []
    for (task_id, most), id_ in zip(trees, work.engine.ids.make_many(work.now, len(trees)), strict=True):
        made.append(NewBudget(id_, workspace, "tree", task_id, above, most))
        under[task_id] = id_
    await work.tx.insert("insert_budgets", made)
    return under


async def _of_dag(work: UnitOfWork, workspace: str, dag_id: str, ceiling: int | None) -> str | None:
    if ceiling is None:
        found = await work.tx.one("find_budget", workspace=workspace, kind="dag", owner=dag_id)
        return None if found is None else str(found["id"])
    id_ = work.engine.ids.make(work.now)
    await work.tx.insert("insert_budgets", [NewBudget(id_, workspace, "dag", dag_id, ceiling=ceiling)])
    return id_
