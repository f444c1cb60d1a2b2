"""HTTP schemas for tasks, claims and agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.task import Fields, Name, Submitted, Task
from shiftwork.wire.problem import Problem


class SubmittedBatch(msgspec.Struct, frozen=True):
    tasks: list[Submitted]


class ClaimRefBody(Fields):
    """The claim that a write is made under: its token, or its fence. The aegis and loki views need neither."""

    token: Name | None = None
    fence: Annotated[int, Meta(ge=0)] | None = None
    agent_id: Name | None = None
    runtime_id: Name | None = None


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


class TaskList(msgspec.Struct, frozen=True):
    tasks: list[Task]


class Listed(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]]


class Me(msgspec.Struct, frozen=True):
    """The caller's identity on this server, and the server's time."""

    workspace: str
    scopes: list[str]
    token: str | None
    now: float


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok", "stopping", "unavailable"]
    version: str
    store: str
    test_clock: bool = False
    detail: str | None = None
    view: str = "native"
    """The view of answers to callers that name none."""
