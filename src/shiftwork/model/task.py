"""The task as submitted and as returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from shiftwork.model.bounds import MAX_NAME, MAX_PAGE, MAX_SEARCH, MAX_TEXT
from shiftwork.model.states import SETTLED
from shiftwork.model.times import DatedTime, Delay, Time
from shiftwork.settings.model import AgeingRate, ModelOrder

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Priority = Annotated[float, Meta(ge=0, le=100)]
PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Search = Annotated[str, Meta(min_length=1, max_length=MAX_SEARCH)]
"""Words to find in title, payload, tags or errors; each may be the beginning of a word."""
Urgency = Literal["normal", "batch"]
Dollars = Annotated[float, Meta(ge=0, le=1e9)]
Traceparent = Annotated[str, Meta(pattern=r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$")]
"""In the form of the W3C recommendation on trace context."""

PUBLISHED = "published"
"""The hold of a task offered to the workers of another system."""
SCHEDULED = "scheduled"
"""The hold of a pending task whose time has not come."""

MICRO = 1_000_000
MAX_REPORTED_USD = 100_000
MAX_REPORTED_TOKENS = 10**12
"""The most in one usage report: far above any real cost, but too low to overflow a workspace's totals."""


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything a caller writes: a field we do not know is refused, not dropped."""


class Constraints(Fields):
    """Limits and requirements of the work."""

    max_cost_usd: Dollars | None = None
    max_duration_sec: Annotated[float, Meta(gt=0)] | None = None
    required_capabilities: list[Name] = []
    model_preferences: list[Name] = []
    fallback_models: list[Name] = []
    model_order: ModelOrder | None = None
    """Which of its models a claim uses: the first listed, or the cheapest by public prices; by default, the setting
    decides."""


class Spec(Fields):
    """The work in words for a model."""

    prompt: str | None = None
    context_refs: list[Name] = []
    constraints: Constraints = msgspec.field(default_factory=Constraints)


class Output(Fields):
    """What the work must submit."""

    type: Literal["code", "markdown", "json", "artifact"] | None = None
    validation: Literal["json-schema", "test-pass", "llm-judge", "regex", "none"] = "none"
    validation_schema: dict[str, Any] | str | None = None


class NewTask(Fields):
    """A task to be submitted. `key` names it inside its batch, so that others there can depend on it."""

    type: Name
    key: Name | None = None
    id: Name | None = None
    idempotency_key: Name | None = None
    title: Text | None = None
    tool_name: Name | None = None
    payload: dict[str, Any] = {}
    spec: Spec | None = None
    output: Output | None = None
    priority: Priority = 50
    priority_boost_per_minute: AgeingRate | None = None
    deadline: Time | None = None
    run_at: DatedTime | None = None
    """The earliest start; a time in the past means at once."""
    delay: Delay | None = None
    """The same, counted from the submission; not together with `run_at`."""
    expires_at: DatedTime | None = None
    """No attempt begins after this time: a task that is still waiting is then cancelled."""
    expires_in: Delay | None = None
    """The same, counted from the submission; not together with `expires_at`."""
    dependencies: list[Name] = []
    tags: list[Name] = []
    created_by: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    timeout_sec: Annotated[float, Meta(gt=0)] | timedelta | None = None
    retry: dict[str, Any] | None = None
    delivery: Literal["at_least_once", "at_most_once"] | None = None
    urgency: Urgency = "normal"
    """`batch`: the task may wait a day for half the price. Its payload names a provider and the request."""
    estimated_cost_usd: Dollars | None = None
    tree_budget_usd: Dollars | None = None
    """The maximum cost of the task over all attempts, with everything spawned under it."""
    target_agent_id: Name | None = None
    issue_id: Name | None = None
    serial_key: Name | None = None
    """Tasks with the same key run one at a time, if `serialize_by` is `key`."""
    trigger_type: Name | None = None
    trigger_comment_id: Name | None = None
    trigger_summary: Text | None = None
    session_id: Name | None = None
    work_dir: Text | None = None
    force_fresh_session: bool = False
    traceparent: Traceparent | None = None
    """The trace it belongs to; by default, that of the submitting call."""
    settings: dict[str, Any] | None = None


class TaskOptions(TypedDict, total=False):
    """The fields of `NewTask` as keyword arguments, except type and payload."""

    key: Name | None
    id: Name | None
    idempotency_key: Name | None
    title: Text | None
    tool_name: Name | None
    spec: Spec | Mapping[str, Any] | None
    output: Output | Mapping[str, Any] | None
    priority: Priority
    priority_boost_per_minute: AgeingRate | None
    deadline: Time | None
    run_at: DatedTime | None
    delay: Delay | None
    expires_at: DatedTime | None
    expires_in: Delay | None
    dependencies: Sequence[Name]
    tags: Sequence[Name]
    created_by: Name | None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None
    timeout_sec: Annotated[float, Meta(gt=0)] | timedelta | None
    retry: Mapping[str, Any] | None
    delivery: Literal["at_least_once", "at_most_once"] | None
    urgency: Urgency
    estimated_cost_usd: Dollars | None
    tree_budget_usd: Dollars | None
    target_agent_id: Name | None
    issue_id: Name | None
    serial_key: Name | None
    trigger_type: Name | None
    trigger_comment_id: Name | None
    trigger_summary: Text | None
    session_id: Name | None
    work_dir: Text | None
    force_fresh_session: bool
    traceparent: Traceparent | None
    settings: Mapping[str, Any] | None


class TaskFields(TaskOptions, total=False):
    """The fields of `NewTask` as keyword arguments."""

    type: Name
    payload: Mapping[str, Any]


class NewDag(Fields):
    """Tasks and edges submitted together, all or nothing."""

    tasks: list[NewTask]
    title: Text | None = None
    created_by: Name | None = None
    budget_ceiling_usd: Dollars | None = None


class Changes(Fields):
    """Changes to a task that no one holds. Omitted fields stay unchanged."""

    priority: Priority | None = None
    deadline: Time | None = None
    run_at: DatedTime | None = None
    expires_at: DatedTime | None = None
    timeout_sec: Annotated[float, Meta(gt=0)] | timedelta | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    estimated_cost_usd: Dollars | None = None
    tags: list[Name] | None = None
    dependencies: list[Name] | None = None
    clear: list[Name] = []
    """Names of optional fields to empty: deadline, run_at, expires_at, timeout_sec."""
    note: Text | None = None
    """The reason, recorded in the event."""


class Usage(Fields):
    """The usage since the last report, and its model."""

    cost_usd: Annotated[float, Meta(ge=0, le=MAX_REPORTED_USD)] | None = None
    """If null, it is computed from tokens and model by public prices."""
    tokens_in: Annotated[int, Meta(ge=0, le=MAX_REPORTED_TOKENS)] = 0
    tokens_out: Annotated[int, Meta(ge=0, le=MAX_REPORTED_TOKENS)] = 0
    tokens_cached: Annotated[int, Meta(ge=0, le=MAX_REPORTED_TOKENS)] = 0
    """The part of `tokens_in` that came from a cache: it only affects the price."""
    model: Name | None = None


NO_USAGE = Usage()


class Submitted(msgspec.Struct, frozen=True):
    """The outcome of one submitted task."""

    id: str
    status: str
    duplicate: bool = False
    key: str | None = None
    dag_id: str | None = None
    missing_dependencies: list[str] = []
    """Dependencies that do not exist yet (perhaps misspelt): the task waits until they are submitted and completed."""


class Claim(msgspec.Struct, frozen=True):
    """Who holds a task and until when."""

    agent_id: str | None
    runtime_id: str | None
    claimed_at: float | None
    heartbeat_at: float | None
    heartbeat_interval_sec: float
    assignment_id: str | None
    ack_required_by: float | None
    execution_deadline: float | None
    model: str | None = None
    """The model to use, if the task restricts its models."""
    account: str | None = None
    """The account to use, if the agent has several."""


class Failed(msgspec.Struct, frozen=True):
    """One failed attempt in a task's history."""

    attempt: int
    agent: str
    reason: str | None
    error: str | None
    duration_sec: float
    cost_usd: float
    at: float
    note: str | None = None


class NewVerdict(Fields):
    """Whether an output passed its tests, with evidence, from the caller that ran them."""

    passed: bool
    evidence: dict[str, Any] | None = None
    note: Text | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether the output of an attempt passed its validation, and who decided."""

    method: str
    passed: bool
    by: str
    at: float
    reasons: list[str] = []
    evidence: dict[str, Any] | None = None


class Result(msgspec.Struct, frozen=True):
    """The outcome of a task: of its last attempt, or the output that awaits its verdict."""

    task_id: str
    status: Literal["success", "failed"] | None
    data: Any
    text: str | None
    artifacts: list[str]
    decision_report: dict[str, Any] | None
    error: str | None
    reason: str | None
    execution_time_sec: float | None
    worker_id: str | None
    completed_at: float | None
    verdict: Verdict | None = None
    external_id: str | None = None

    @property
    def output(self) -> Any:
        """The output as one value: the data, or the text if there is no data."""
        return self.text if self.data is None else self.data


Failures = Literal["wait", "return"]
"""For a task that ends without success: wait on until a person brings it to completion, or return its outcome."""


class Wait(msgspec.Struct, frozen=True):
    """A named wait of a task for something other than tasks, with the answer once there is one."""

    name: str
    kind: Literal["time", "signal", "person"]
    status: Literal["open", "met", "expired"]
    began_at: float
    until: float | None = None
    """When a timer ends, or when a wait for a signal or an answer expires."""
    signal: str | None = None
    question: str | None = None
    schema: dict[str, Any] | None = None
    """The schema of an answer."""
    ended_at: float | None = None
    value: Any = None
    """The signal's data, or the answer."""
    answered_by: str | None = None


class FailedDependency(msgspec.Struct, frozen=True):
    """A dependency or subtask that ended without success, as it was when its dependent continued without it."""

    task_id: str
    status: str
    """Dead-lettered, resting failed or cancelled."""
    reason: str | None = None
    error: str | None = None


class Task(msgspec.Struct, frozen=True):
    """A task as a reader sees it. Times are seconds since 1970."""

    id: str
    workspace_id: str
    type: str
    status: str
    priority: float
    dag_id: str
    root_task_id: str
    created_at: float
    updated_at: float
    version: int
    fence: int
    round: int
    attempts: int
    max_attempts: int
    claim: Claim
    retry: dict[str, Any]
    title: str | None = None
    tool_name: str | None = None
    payload: dict[str, Any] = {}
    spec: dict[str, Any] | None = None
    output: dict[str, Any] | None = None
    priority_boost_per_minute: float = 0
    deadline: float | None = None
    run_at: float | None = None
    """Not before this time, as submitted or changed."""
    expires_at: float | None = None
    """No attempt begins after this time."""
    effective_priority: float = 0
    priority_parts: dict[str, float] = {}
    priority_tier: str = ""
    age_minutes: float = 0
    dependencies: list[str] = []
    blocked_by: list[str] = []
    failed_dependencies: list[FailedDependency] = []
    """Dependencies and awaited tasks that ended without success and no longer block this one."""
    blocked: bool = False
    blocked_reason: str | None = None
    hold: str | None = None
    waits: list[Wait] = []
    external_id: str | None = None
    merged_ids: list[str] = []
    """Ids of later submissions that were deduplicated into this task; each of them names it."""
    idempotency_key: str | None = None
    parent_id: str | None = None
    retry_of: str | None = None
    rerun_of: str | None = None
    superseded_by: str | None = None
    target_agent_id: str | None = None
    issue_id: str | None = None
    serial_key: str | None = None
    trigger_type: str | None = None
    trigger_comment_id: str | None = None
    trigger_summary: str | None = None
    session_id: str | None = None
    work_dir: str | None = None
    force_fresh_session: bool = False
    traceparent: str | None = None
    tags: list[str] = []
    created_by: str | None = None
    timeout_sec: float | None = None
    delivery: str = "at_least_once"
    urgency: Urgency = "normal"
    estimated_cost_usd: float | None = None
    tree_budget_usd: float | None = None
    progress: Any = None
    available_at: float | None = None
    claimed_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    cancelled_at: float | None = None
    finished_at: float | None = None
    failed_at: float | None = None
    dead_lettered_at: float | None = None
    cancel_reason: str | None = None
    failure_reason: str | None = None
    last_error: str | None = None
    failure_history: list[Failed] = []
    poison_pill: bool = False
    result: Result | None = None
    incomplete: bool = False
    """The result was submitted without the decision report it needs; the task is still running."""
    judge_task_id: str | None = None
    """The task that judges its output, while the verdict is awaited."""
    cost_usd: float = 0
    tokens_used: dict[str, int] = {}
    settings: dict[str, Any] | None = None
    archived: bool = False


class Page(msgspec.Struct, frozen=True):
    """A page of tasks; `next` is the cursor of the following one."""

    tasks: list[Task]
    next: str | None
    index_lag: int = 0
    """Events that are not in the search index yet: a search may miss their changes. 0 if the index is up to date."""


class Dag(msgspec.Struct, frozen=True):
    """A DAG as a reader sees it."""

    id: str
    workspace_id: str
    title: str | None
    created_by: str | None
    status: Literal["pending", "running", "completed", "failed", "cancelled"]
    tasks: list[str]
    roots: list[str]
    leaves: list[str]
    counts: dict[str, int]
    done: int
    total: int
    budget_ceiling_usd: float | None
    spent_usd: float
    created_at: float
    finished_at: float | None


def micros(dollars: float | None) -> int:
    """Money is kept as integers; dollars exist only at the edge."""
    return round((dollars or 0) * MICRO)


def dollars(amount: int | None) -> float:
    return (amount or 0) / MICRO


class DagTask(msgspec.Struct, frozen=True):
    """The outcome of one task of a DAG."""

    id: str
    type: str
    title: str | None
    status: str
    output: Any
    """Its result: the data, or the text if there is no data."""
    error: str | None
    reason: str | None
    ended_at: float | None


class DagResult(msgspec.Struct, frozen=True):
    """The outcome of an ended DAG: for each task submitted with it, its newest try."""

    dag_id: str
    status: Literal["completed", "failed", "cancelled"]
    tasks: list[DagTask]

    @property
    def failures(self) -> list[DagTask]:
        """Tasks that failed for good, the first failure first."""
        failed = [task for task in self.tasks if task.status in SETTLED]
        return sorted(failed, key=lambda task: task.ended_at or 0.0)
