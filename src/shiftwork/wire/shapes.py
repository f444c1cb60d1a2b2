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
    """Which claim a write is made under: its token, or its fence. The aegis and loki views need neither."""

    token: Name | None = None
    fence: Annotated[int, Meta(ge=0)] | None = None
    agent_id: Name | None = None
    runtime_id: Name | None = None


class OutcomeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a write came to. In a batch each has its own, and `error` where it was refused."""

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
    """The time now, and what the maintenance jobs that came due have done."""

    now: float
    duties: dict[str, dict[str, int]]


class TaskList(msgspec.Struct, frozen=True):
    tasks: list[Task]


class Listed(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]]


class Me(msgspec.Struct, frozen=True):
    """Who the caller is to this server, and what time it is there."""

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
    """In whose names callers are answered who name no view."""
