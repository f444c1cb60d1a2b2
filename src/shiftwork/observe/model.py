"""Explanations, status, alerts, failure patterns and metrics, as callers see them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.limits.model import QuotaInForce
from shiftwork.model.task import FailedDependency

By = Literal["type", "agent", "model", "reason", "signature"]
KEPT_SNAPSHOTS = 120


class Alert(msgspec.Struct, frozen=True):
    """A problem that needs attention; `acknowledged_at` is when a person acknowledged it."""

    seq: int
    at: float
    workspace_id: str
    kind: str
    severity: str
    message: str
    task_id: str | None
    data: dict[str, Any]
    acknowledged_at: float | None
    acknowledged_by: str | None


class Pattern(msgspec.Struct, frozen=True):
    """A group of failed attempts; `task_id` and `error` are of the newest."""

    by: By
    value: str | None
    total: int
    rate: float | None
    """The recent failure rate of this type or agent; null for other groups."""
    agents: list[str]
    """The agents of these attempts: up to twenty, by name."""
    first_at: float
    last_at: float
    task_id: str | None
    error: str | None


class Sample(msgspec.Struct, frozen=True):
    """One value. A histogram has the form that Prometheus uses: `_bucket` with `le`, `_sum` and `_count`."""

    name: str
    value: float
    labels: dict[str, str] = {}


class Metrics(msgspec.Struct, frozen=True):
    """All metrics of a workspace at one time."""

    calculated_at: float
    samples: list[Sample]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series, or None."""
        return next((s.value for s in self.samples if s.name == name and s.labels == labels), None)


class Blocker(msgspec.Struct, frozen=True):
    """One reason why a task waits."""

    kind: str
    what: str
    lifts: str
    until: float | None = None
    tasks: list[str] = []


class Share(msgspec.Struct, frozen=True):
    """One share of the work, and the number of shares it alternates with."""

    by: str
    number: int
    shares: int
    waiting: int
    """Shares of the workspace that have ready tasks, this one among them."""


class Explanation(msgspec.Struct, frozen=True):
    """A task's state in a sentence, its holds, and its priority with its components."""

    task_id: str
    status: str
    summary: str
    holds: list[Blocker]
    effective_priority: float
    priority_parts: dict[str, float]
    position: int | None = None
    """How many ready tasks of its lane go before it, counted up to 10,000."""
    able_agents: list[str] = []
    share: Share | None = None
    """Its fair share, if tasks alternate."""
    failed_dependencies: list[FailedDependency] = []
    """Dependencies and awaited tasks that ended without success and no longer block it."""


class Cause(msgspec.Struct, frozen=True):
    """One reason why tasks wait, what would lift it, and how many tasks it affects."""

    kind: str
    tasks: int
    what: str
    lifts: str
    until: float | None = None
    """When it lifts by itself, if known."""
    types: list[str] = []
    """Types of the tasks: up to ten, those with most tasks first."""


class WaitingWork(msgspec.Struct, frozen=True):
    """A summary of why work waits. Each task is counted once, under the cause that must be lifted first."""

    calculated_at: float
    counted_at: float
    """When the tasks were counted: seconds ago, or up to 30 s with more than 100,000."""
    running: int
    """Tasks that agents hold."""
    waiting: int
    causes: list[Cause]
    """Those with most tasks first."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs although work waits."""
        return bool(self.waiting) and not self.running


class RecentFailure(msgspec.Struct, frozen=True):
    """A failed attempt, whatever became of its task."""

    task_id: str
    type: str | None
    reason: str | None
    error: str | None
    agent_id: str | None
    at: float


class Status(msgspec.Struct, frozen=True):
    """The state of the queue."""

    calculated_at: float
    counts: dict[str, int]
    types: dict[str, dict[str, int]]
    tiers: dict[str, int]
    depth: dict[str, int]
    agents: dict[str, int]
    slots: dict[str, int]
    """Of live agents: `total`, `free`, and `unlimited`, how many agents have no limit."""
    paused: list[str]
    completions: int
    """Tasks completed so far, those in the archive included."""
    completed_last_minute: float
    completed_per_minute: float
    """Over the last five minutes."""
    average_wait_sec: dict[str, float | None]
    """From creation to the first claim, of claims in the last five minutes, by level."""
    recent_failures: list[RecentFailure]
    capacity_warnings: list[str]
    counted_at: float
    """When the tasks were counted: now, unless there are more than 100,000."""
    tombstones: int
    archived: int
    quota: QuotaInForce | None = None
    """The workspace's quota, set by the operator of the server; None without limits."""
    scheduled: int = 0
    """Pending tasks scheduled for later."""
    next_scheduled_at: float | None = None
