"""Arguments and results of the tools: few fields, each described, since a model reads all of it before every call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.artifacts.model import Input
from shiftwork.model.bounds import MAX_NAME, MAX_TEXT
from shiftwork.model.reports import HeartbeatReply, TaskResult
from shiftwork.model.task import FailedDependency, Fields, Name, Priority, Text, Usage
from shiftwork.waits.model import Failures

MAX_WAIT_SEC = 20.0
"""A claim waits no longer for work: with what comes before and after, a call is answered within 25 s."""
MAX_LISTED = 100
MAX_TASKS = 100

ClaimToken = Annotated[str, Meta(min_length=1, max_length=300, description="The token that `claim` answered.")]
TaskId = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, description="The task's id.")]
WaitName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_NAME,
        description="Names this wait inside its task; the same name, the same answer.",
    ),
]
WaitSec = Annotated[float, Meta(ge=0, le=MAX_WAIT_SEC, description="How long to wait for the end of the work.")]


class ToolResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what the tools answer: what says nothing is left out."""


class ClaimArguments(Fields):
    wait_sec: Annotated[float, Meta(ge=0, le=MAX_WAIT_SEC, description="How long to wait when there is no work.")] = 0
    types: Annotated[list[Name] | None, Meta(description="Only tasks of these types.")] = None


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
    failed_dependencies: list[FailedDependency] = []
    """Dependencies and subtasks that ended without success; you go on without them."""
    """Tasks that were done before it; `get` tells their results."""
    tags: list[str] = []
    model: str | None = None
    last_error: str | None = None
    """Why the attempt before this one failed."""
    time_left_sec: float | None = None
    checkpoints: list[Checkpoint] = []
    waits: list[WaitResult] = []
    subtasks: list[Subtask] = []


class ClaimResult(ToolResult):
    """A task to work on, or why there is none."""

    next: str
    task: ClaimedTask | None = None
    holding: list[str] = []
    """Tokens of other tasks that you still hold."""
    closed: list[str] = []
    """What hands out nothing now."""
    slow_down_sec: float | None = None


class HeartbeatArguments(Fields):
    token: ClaimToken
    progress: Annotated[Any, Meta(description="How far the work is: a sentence, or any JSON.")] = None
    usage: Annotated[Usage | None, Meta(description="Usage since the last report.")] = None


class HeartbeatResult(HeartbeatReply, frozen=True, kw_only=True, omit_defaults=True):
    """Whether to continue."""

    next: str


class CheckpointArguments(Fields):
    token: ClaimToken
    name: Annotated[Name, Meta(description="Names the step inside its task.")]
    result: Annotated[
        Any,
        Meta(description="The value to save: any JSON. Omit it to read the saved value and mark the step as begun."),
    ] = msgspec.UNSET
    usage: Annotated[Usage | None, Meta(description="The step's cost.")] = None


class Draft(Fields):
    """A task to be done by someone."""

    type: Annotated[Name, Meta(description="The kind of work; decides which agents can claim it.")]
    title: Annotated[Text | None, Meta(description="A one-line title.")] = None
    prompt: Annotated[str | None, Meta(description="Instructions for the agent.")] = None
    payload: Annotated[dict[str, Any], Meta(description="Parameters of the work.")] = {}
    key: Annotated[Name | None, Meta(description="Names it in this call, so that others can depend on it.")] = None
    dependencies: Annotated[list[Name], Meta(description="Keys or ids of tasks that must be done before.")] = []
    context_refs: Annotated[
        list[Name], Meta(description="Artifacts, or outputs of dependencies (`task:KEY:output`), to pass along.")
    ] = []
    priority: Annotated[Priority, Meta(description="0 (first) to 100 (last).")] = 50
    tags: list[Name] = []
    output_schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema that the result must meet.")] = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    timeout_sec: Annotated[float, Meta(gt=0)] | None = None
    idempotency_key: Annotated[Name | None, Meta(description="The same key twice is one task.")] = None


Drafts = Annotated[list[Draft], Meta(min_length=1, max_length=MAX_TASKS)]


FailuresField = Annotated[
    Failures,
    Meta(description="`return`: they are done once they have ended, failed or not; your claim then says which failed."),
]


class SpawnArguments(Fields):
    token: ClaimToken
    tasks: Annotated[Drafts, Meta(description="Give each a `key`: sent twice, it is then one task.")]
    wait: Annotated[bool, Meta(description="Give your task back until they are done.")] = False
    failures: FailuresField = "wait"


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


class WaitArguments(Fields):
    token: ClaimToken
    tasks: Annotated[list[Name], Meta(description="Wait until these tasks are done.")] = []
    failures: FailuresField = "wait"
    seconds: Annotated[float, Meta(gt=0, description="How long to wait.")] | None = None
    signal: Annotated[Name | None, Meta(description="Wait until this signal is sent.")] = None
    name: WaitName | None = None
    timeout_sec: Annotated[float, Meta(gt=0, description="How long to wait for the signal at most.")] | None = None


class AskArguments(Fields):
    token: ClaimToken
    question: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    name: WaitName
    schema: Annotated[dict[str, Any] | None, Meta(description="JSON Schema that the answer must meet.")] = None
    timeout_sec: Annotated[float, Meta(gt=0, description="How long to wait at most.")] | None = None


class WaitStatus(ToolResult):
    """What came of a wait; while it is open the task is no longer yours."""

    status: Literal["waiting", "met", "expired"]
    next: str
    failed: list[FailedDependency] = []
    """With `failures` set to `return`: tasks that ended without success."""
    value: Any = None
    answered_by: str | None = None


class CompleteArguments(TaskResult, kw_only=True):
    token: ClaimToken


class FailArguments(Fields):
    token: ClaimToken
    error: Annotated[Text, Meta(min_length=1, description="The error, for the next attempt.")]
    reason: Annotated[Name | None, Meta(description="A known kind, e.g. network, rate_limit, invalid_input.")] = None
    retry: Annotated[bool, Meta(description="False where another attempt cannot help.")] = True
    usage: Annotated[Usage | None, Meta(description="Usage since the last report.")] = None


class ReleaseArguments(Fields):
    token: ClaimToken
    reason: Text | None = None


class EndedTask(ToolResult):
    """What became of the task."""

    task_id: str
    status: str
    next: str
    repeated: bool = False
    """It was said before; nothing was changed by saying it again."""


class SubmitArguments(Fields):
    tasks: Annotated[Drafts, Meta(description="One task, or several that go in together or not at all.")]
    title: Annotated[Text | None, Meta(description="Of several: what they are for.")] = None
    wait_sec: WaitSec = 0


class Submission(ToolResult):
    tasks: list[CreatedTask]
    dag_id: str | None = None
    next: str | None = None


class GetArguments(Fields):
    task_id: TaskId
    wait_sec: WaitSec = 0


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


class ListArguments(Fields):
    status: Annotated[Name | None, Meta(description="E.g. ready, running, completed, dead_lettered.")] = None
    type: Name | None = None
    tag: Name | None = None
    dag_id: Name | None = None
    parent_id: Annotated[Name | None, Meta(description="Only what this task has spawned.")] = None
    for_people: Annotated[bool, Meta(description="Only what waits for a person: approvals and questions.")] = False
    after: Annotated[Name | None, Meta(description="Go on behind this task id.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 20


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


class CancelArguments(Fields):
    task_id: TaskId
    reason: Annotated[Text, Meta(min_length=1)] = "cancelled"


class ApproveArguments(Fields):
    task_id: TaskId
    decision: Annotated[Literal["approve", "reject"], Meta(description="reject cancels the task.")] = "approve"
    note: Annotated[Text | None, Meta(description="The reason, recorded in the history.")] = None
    revision: Annotated[Name | None, Meta(description="Only if the work is still this revision.")] = None


class AnswerArguments(Fields):
    task_id: TaskId
    value: Annotated[Any, Meta(description="The answer: any JSON that matches the question's schema.")]


class Changed(ToolResult):
    task_id: str
    status: str
