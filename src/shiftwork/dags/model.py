"""DAGs as they are listed, and their changeable fields."""

from __future__ import annotations

from typing import Literal

import msgspec

from shiftwork.model.task import Dollars, Fields, Text

DagStatus = Literal["pending", "running", "completed", "failed", "cancelled"]


class DagSummary(msgspec.Struct, frozen=True):
    """A DAG without its tasks. Archived tasks are not counted."""

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
    """Changes of a DAG. An omitted field stays; null clears it."""

    title: Text | msgspec.UnsetType | None = msgspec.UNSET
    budget_ceiling_usd: Dollars | msgspec.UnsetType | None = msgspec.UNSET
