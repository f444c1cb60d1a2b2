"""Dead letters and the decisions about them, as callers see them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.model.task import Failed

Decision = Literal["retry", "retry_later", "modify_and_retry", "cancel", "abandon", "delete", "escalate"]


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter with its history."""

    task_id: str
    dag_id: str
    type: str
    tool_name: str | None
    payload: dict[str, Any]
    error: str | None
    reason: str | None
    retry_count: int
    failure_history: list[Failed]
    total_cost_usd: float
    dead_lettered_at: float
    reviewed: bool
    resolution: str | None
    poison_pill: bool
    signature: str
    round: int
    external_id: str | None = None


class FailureGroup(msgspec.Struct, frozen=True):
    """Open dead letters with the same signature."""

    signature: str
    type: str
    reason: str | None
    total: int
    first_at: float
    last_at: float
    example: str | None
    """An example of their errors."""


class Review(msgspec.Struct, frozen=True):
    """A decision about a dead letter: by whom, when and why."""

    round: int
    at: float
    actor: str
    decision: str
    note: str | None
    change: dict[str, Any] | None
