"""Delayed starts: stored as a wait of the task, under a name that no agent can use."""

from __future__ import annotations

from typing import Any

from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.task import SCHEDULED

NAME = ""
"""The waits of agents have a name of at least one character."""


def opened(root_id: str, task_id: str, workspace: str, run_at: float, now: float) -> tuple[Any, ...]:
    """The wait for a task's start time, in the column order of `insert_waits`."""
    return (root_id, NAME, task_id, workspace, "time", "open", None, None, None, run_at, now, None, None, None, None)


async def begin(work: UnitOfWork, row: TaskRow, run_at: float) -> None:
    """Make a task wait for this time instead of an earlier one; the caller updates the task's count of waits."""
    await end(work, row)
    await work.tx.insert("insert_waits", [opened(row.root_id, row.id, row.workspace, run_at, work.now)])
    row.hold = SCHEDULED
    row.due_at = row.ordered_at = run_at
    work.touch(row)


async def end(work: UnitOfWork, row: TaskRow) -> None:
    """End the task's wait for its start time."""
    await work.tx.run("drop_wait", root=row.root_id, name=NAME)
    if row.hold == SCHEDULED:
        row.hold = None
        row.due_at = row.ordered_at = work.now
        work.touch(row)
