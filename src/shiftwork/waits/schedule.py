"""Delayed starts: stored as a wait of the task, under a name that no agent can use."""

from __future__ import annotations

from typing import NamedTuple

from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.task import SCHEDULED

NAME = ""
"""The waits of agents have a name of at least one character."""


class StoredWait(NamedTuple):
    """A row of `waits` (`insert_waits`)."""

    root_id: str
    name: str
    task_id: str
    workspace: str
    kind: str
    status: str
    until: float | None
    began_at: float
    ended_at: float | None = None
    signal: str | None = None
    question: str | None = None
    schema: str | None = None
    value: str | None = None
    signal_seq: int | None = None
    answered_by: str | None = None


def opened(row: TaskRow, run_at: float, now: float) -> StoredWait:
    """The wait for a task's start time."""
    return StoredWait(row.root_id, NAME, row.id, row.workspace, "time", "open", run_at, now)


async def begin(work: UnitOfWork, row: TaskRow, run_at: float) -> None:
    """Make a task wait for this time instead of an earlier one; the caller updates the task's count of waits."""
    await end(work, row)
    await work.tx.insert("insert_waits", [opened(row, run_at, work.now)])
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
