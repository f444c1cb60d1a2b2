"""HTTP schemas for tasks, claims and agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.task import Fields, Submitted
from shiftwork.wire.problem import Problem


class SubmittedBatch(msgspec.Struct, frozen=True):
    tasks: list[Submitted]


class OutcomeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a write. In a batch, each item has its own, with `error` if it was refused."""

    task_id: str
    status: str | None = None
    repeated: bool = False
    data: dict[str, Any] | None = None
    error: Problem | None = None


class Outcomes(msgspec.Struct, frozen=True):
    outcomes: list[OutcomeReply]


class ClockBody(Fields):
    advance_sec: Annotated[float, Meta(ge=0, le=1e9)]


class ClockReply(msgspec.Struct, frozen=True):
    """The new time, and what the maintenance jobs that came due did."""

    now: float
    duties: dict[str, dict[str, int]]


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "stopping", "unavailable"]
    version: str
    store: str
    test_clock: bool = False
    detail: str | None = None
    view: str = "native"
    """The view of answers to callers that name none."""
