"""The tools' results: few fields, because a model reads all of them after every call."""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

from shiftwork.engine.assignment import Input
from shiftwork.model.reports import HeartbeatReply, Instruction
from shiftwork.model.task import FailedDependency


class ToolResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of the tools' results: empty fields are left out."""

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """A result with the fields of the source that have the same names; `others` are made in another way."""
        same = {name: getattr(source, name) for name in cls.__struct_fields__ if hasattr(source, name)}
        return cls(**{**same, **others})


class Checkpoint(ToolResult):
    """A step of this or an earlier attempt; not done if it was begun but never stored."""

    name: str
    done: bool = False
    result: Any = None
    artifact: str | None = None
    """A reference to a result too large to include here."""


class WaitResult(ToolResult):
    """A wait of the task, with its result."""

    name: str
    status: Literal["open", "met", "expired"]
    question: str | None = None
    signal: str | None = None
    value: Any = None
    answered_by: str | None = None


class Subtask(ToolResult):
    """A subtask of this task."""

    task_id: str
    type: str
    status: str
    title: str | None = None
    data: Any = None
    text: str | None = None
    error: str | None = None


class ClaimedTask(ToolResult):
    """A task that you hold."""

    token: str
    """Pass it in every call about this claim."""
    task_id: str
    type: str
    attempt: int
    max_attempts: int
    title: str | None = None
    prompt: str | None = None
    payload: dict[str, Any] = {}
    output: dict[str, Any] | None = None
    """The required output, and how it is validated."""
    inputs: list[Input] = []
    dependencies: list[str] = []
    """Its finished dependencies; `get` shows their results."""
    failed_dependencies: list[FailedDependency] = []
    """Dependencies and subtasks that ended without success; continue without them."""
    tags: list[str] = []
    model: str | None = None
    account: str | None = None
    last_error: str | None = None
    """Why the previous attempt failed."""
    time_left_sec: float | None = None
    checkpoints: list[Checkpoint] = []
    waits: list[WaitResult] = []
    subtasks: list[Subtask] = []
    instructions: list[Instruction] = []
    """Instructions so far, in order. `heartbeat` brings later ones."""


class ClaimResult(ToolResult):
    """A task to work on, or why there is none."""

    next: str
    task: ClaimedTask | None = None
    holding: list[str] = []
    """Tokens of other tasks that you still hold."""
    closed: list[str] = []
    """Closed gates."""
    slow_down_sec: float | None = None


class HeartbeatResult(HeartbeatReply, frozen=True, kw_only=True, omit_defaults=True):
    """Whether to continue."""

    next: str


class TaskOutcome(ToolResult):
    """The outcome of a task."""

    data: Any = None
    text: str | None = None
    artifacts: list[str] = []
    error: str | None = None
    reason: str | None = None


class CreatedTask(ToolResult):
    """One task that was submitted."""

    task_id: str
    status: str
    key: str | None = None
    duplicate: bool = False
    """Whether it already existed."""
    result: TaskOutcome | None = None
    """Set if you waited and it has ended."""


class Spawned(ToolResult):
    tasks: list[CreatedTask]
    next: str


class WaitStatus(ToolResult):
    """The state of a wait; while it is open, the task is no longer yours."""

    status: Literal["waiting", "met", "expired"]
    next: str
    failed: list[FailedDependency] = []
    """With `failures` set to `return`: tasks that ended without success."""
    value: Any = None
    answered_by: str | None = None


class EndedTask(ToolResult):
    """The outcome of the write."""

    task_id: str
    status: str
    next: str
    repeated: bool = False
    """Whether it was a repeat, which changed nothing."""


class Submission(ToolResult):
    tasks: list[CreatedTask]
    dag_id: str | None = None
    next: str | None = None


class TaskView(ToolResult):
    """A task with its state."""

    task_id: str
    type: str
    status: str
    why: str
    """Why it is in this state, in a sentence."""
    lifts: list[str] = []
    """What would let it continue."""
    title: str | None = None
    prompt: str | None = None
    payload: dict[str, Any] = {}
    dag_id: str | None = None
    parent_id: str | None = None
    dependencies: list[str] = []
    blocked_by: list[str] = []
    tags: list[str] = []
    priority: float = 50
    failed_attempts: int = 0
    max_attempts: int = 1
    agent_id: str | None = None
    progress: Any = None
    waits: list[WaitResult] = []
    last_error: str | None = None
    failure_reason: str | None = None
    result: TaskOutcome | None = None
    cost_usd: float = 0
    version: int = 0


class TaskLine(ToolResult):
    """One task of a list."""

    task_id: str
    type: str
    status: str
    title: str | None = None
    agent_id: str | None = None
    last_error: str | None = None
    question: str | None = None
    """Its agent's question; `answer` it."""
    schema: dict[str, Any] | None = None
    revision: str | None = None
    """The revision of the work to be approved."""


class TaskListing(ToolResult):
    tasks: list[TaskLine]
    next: str | None = None
    """The `after` for the next page."""


class Changed(ToolResult):
    task_id: str
    status: str
