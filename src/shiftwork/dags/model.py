"""DAGs as they are listed, and what may be changed about one."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.model.states import SETTLED
from shiftwork.model.task import Dollars, Fields, Text

DagStatus = Literal["pending", "running", "completed", "failed", "cancelled"]


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


class DagTask(msgspec.Struct, frozen=True):
    """What became of one task of a DAG."""

    id: str
    type: str
    title: str | None
    status: str
    output: Any
    """The data it handed in, or the text where there is no data."""
    error: str | None
    reason: str | None
    ended_at: float | None


class DagResult(msgspec.Struct, frozen=True):
    """What became of a DAG that has ended: of each task that was submitted with it, its newest try."""

    dag_id: str
    status: Literal["completed", "failed", "cancelled"]
    tasks: list[DagTask]

    @property
    def failures(self) -> list[DagTask]:
        """Tasks that failed for good, the first failure first."""
        failed = [task for task in self.tasks if task.status in SETTLED]
        return sorted(failed, key=lambda task: task.ended_at or 0.0)


class DagPage(msgspec.Struct, frozen=True):
    """A page of DAGs; `next` is the cursor of the following one."""

    dags: list[DagSummary]
    next: str | None


class DagChanges(Fields):
    """What may be changed about a DAG. A field that is not given stays; null empties it."""

    title: Text | msgspec.UnsetType | None = msgspec.UNSET
    budget_ceiling_usd: Dollars | msgspec.UnsetType | None = msgspec.UNSET
