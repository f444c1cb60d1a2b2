"""What the tools answer: few fields, since a model reads all of it after every call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shiftwork.engine.assignment import Input
from shiftwork.model.reports import HeartbeatReply, Instruction
from shiftwork.model.task import FailedDependency


class ToolResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what the tools answer: what says nothing is left out."""


class Checkpoint(ToolResult):
    """A result that this or an earlier attempt has stored; not done where it was begun and never stored."""

    name: str
    done: bool = False
    result: Any = None
    artifact: str | None = None
    """Where a result lies that is too large to stand here."""


class WaitResult(ToolResult):
    """What the task has waited for, and what came of it."""

    name: str
    status: Literal["open", "met", "expired"]
    question: str | None = None
    signal: str | None = None
    value: Any = None
    answered_by: str | None = None


class Subtask(ToolResult):
    """A task that this one has spawned."""

    task_id: str
    type: str
    status: str
    title: str | None = None
    data: Any = None
    text: str | None = None
    error: str | None = None


class ClaimedTask(ToolResult):
    """A task in your hands."""

    token: str
    """Names this claim in every call about it."""
    task_id: str
    type: str
    attempt: int
    max_attempts: int
    title: str | None = None
    prompt: str | None = None
    payload: dict[str, Any] = {}
    output: dict[str, Any] | None = None
    """What must be submitted, and how it is checked."""
    inputs: list[Input] = []
    dependencies: list[str] = []
    """Tasks that were done before it; `get` shows their results."""
    failed_dependencies: list[FailedDependency] = []
    """Dependencies and subtasks that ended without success; you go on without them."""
    tags: list[str] = []
    model: str | None = None
    account: str | None = None
    last_error: str | None = None
    """Why the attempt before this one failed."""
    time_left_sec: float | None = None
    checkpoints: list[Checkpoint] = []
    waits: list[WaitResult] = []
    subtasks: list[Subtask] = []
    instructions: list[Instruction] = []
    """What people said to this task so far, in order. `heartbeat` brings later ones."""


class ClaimResult(ToolResult):
    """A task to work on, or why there is none."""

    next: str
    task: ClaimedTask | None = None
    holding: list[str] = []
    """Tokens of other tasks that you still hold."""
    closed: list[str] = []
    """What hands out nothing now."""
    slow_down_sec: float | None = None


class HeartbeatResult(HeartbeatReply, frozen=True, kw_only=True, omit_defaults=True):
    """Whether to continue."""

    next: str


class TaskOutcome(ToolResult):
    """What a task came to."""

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
    """It was there already."""
    result: TaskOutcome | None = None
    """Where you waited, and it has ended."""


class Spawned(ToolResult):
    tasks: list[CreatedTask]
    next: str


class WaitStatus(ToolResult):
    """What came of a wait; while it is open the task is no longer yours."""

    status: Literal["waiting", "met", "expired"]
    next: str
    failed: list[FailedDependency] = []
    """With `failures` set to `return`: tasks that ended without success."""
    value: Any = None
    answered_by: str | None = None


class EndedTask(ToolResult):
    """What became of the task."""

    task_id: str
    status: str
    next: str
    repeated: bool = False
    """It was said before; nothing was changed by saying it again."""


class Submission(ToolResult):
    tasks: list[CreatedTask]
    dag_id: str | None = None
    next: str | None = None


class TaskView(ToolResult):
    """A task as it stands."""

    task_id: str
    type: str
    status: str
    why: str
    """Why it is there, in a sentence."""
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
    """What its agent asks; `answer` it."""
    schema: dict[str, Any] | None = None
    revision: str | None = None
    """Of the work that is to be approved."""


class TaskListing(ToolResult):
    tasks: list[TaskLine]
    next: str | None = None
    """The `after` of the following page."""


class Changed(ToolResult):
    task_id: str
    status: str
