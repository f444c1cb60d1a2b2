"""Waits, signals and decisions, as callers see them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.model.task import FailedDependency, Wait

Kind = Literal["approval", "question"]
WAITS = frozenset({"time", "signal", "person"})
"""Holds of a pending task that has an open wait, by its kind."""


class WaitResult(msgspec.Struct, frozen=True):
    """The task's state: pending while it waits. A named wait comes with its result, if any."""

    status: str
    wait: Wait | None = None
    failed: list[FailedDependency] = []
    """Of a wait for tasks with `failures` set to `return`: those that ended without success."""


class Signalled(msgspec.Struct, frozen=True):
    """A sent signal: how many tasks it has freed, and until when it is kept for later waits."""

    seq: int
    name: str
    freed: int
    expires_at: float


class ApprovalRequest(msgspec.Struct, frozen=True):
    """One task that waits for a person, with the facts for the decision."""

    task_id: str
    kind: Kind
    type: str
    dag_id: str
    version: int
    asked_at: float
    expires_at: float | None
    title: str | None
    created_by: str | None
    tool_name: str | None
    payload: dict[str, Any]
    spec: dict[str, Any] | None
    tags: list[str]
    estimated_cost_usd: float | None
    revision: str | None = None
    """The revision of the work to be approved; pass it with the decision, to detect a change in between."""
    rule: dict[str, Any] | None = None
    """The guard's rule that the task meets."""
    name: str | None = None
    question: str | None = None
    schema: dict[str, Any] | None = None
    """The schema of an answer."""
