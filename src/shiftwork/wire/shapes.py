"""What callers send and get over HTTP, besides the records that the queue's own verbs take and give."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.core.task import Fields, Name, NewTask, NewVerdict, Submitted, Task, Text, Usage
from shiftwork.queue.agents import Agent
from shiftwork.queue.change import Changes
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.face.observing import BridgeInfo, Transition
from shiftwork.queue.face.reading import DeadLetter
from shiftwork.queue.observation.alerts import Alert
from shiftwork.queue.observation.failures import Pattern
from shiftwork.queue.observation.metrics import Metrics
from shiftwork.queue.protection.gates import Closed
from shiftwork.queue.protection.quotas import QuotaInForce
from shiftwork.queue.read import Attempt, Event
from shiftwork.queue.snapshots import Snapshot
from shiftwork.queue.tokens import TokenInfo
from shiftwork.wire.problem import Problem

LONGEST_WAIT_SEC = 25.0
MOST_IN_BATCH = 1000

# -- submitting --------------------------------------------------------------------------------------------------


class Batch(Fields):
    """Several tasks, all or nothing."""

    tasks: list[NewTask]


class SubmittedBatch(msgspec.Struct, frozen=True):
    tasks: list[Submitted]


# -- claiming and holding ----------------------------------------------------------------------------------------


class ClaimBody(Fields):
    """Who claims, how much, and how long it will wait for work."""

    agent_id: Name | None = None
    runtime_id: Name | None = None
    count: Annotated[int, Meta(ge=1, le=MOST_IN_BATCH)] = 1
    wait_sec: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SEC)] = 0
    start: bool = False
    types: list[Name] | None = None
    capabilities: list[Name] = []
    models: list[Name] = []
    fifo: bool = False
    """The oldest first, whatever its priority."""


class Assigned(msgspec.Struct, frozen=True):
    """A claimed task and the terms of its claim. Send `token` with every write under it."""

    token: str
    assignment_id: str
    task: Task
    ack_required_by: float | None
    execution_deadline: float | None
    heartbeat_interval_sec: float
    model: str | None = None
    inputs: list[Input] = []


class ClaimToken(msgspec.Struct, frozen=True):
    """The token of a claim."""

    token: str


class ClaimReply(msgspec.Struct, frozen=True):
    """What was claimed; where nothing was, what stood in the way."""

    assignments: list[Assigned]
    closed: list[Closed] = []
    no_fit: int = 0
    at_capacity: bool = False
    slow_down_sec: float | None = None


class Held(Fields):
    """Which claim a write is made under: its token, or its fence. The aegis and loki views need neither."""

    token: Name | None = None
    fence: Annotated[int, Meta(ge=0)] | None = None
    agent_id: Name | None = None
    runtime_id: Name | None = None


class HeartbeatBody(Held):
    progress: Any = None
    usage: Usage | None = None


class ProgressBody(Held):
    progress: Any = None


class SessionBody(Held):
    session_id: Name | None = None
    work_dir: Text | None = None


class MessageBody(Held, kw_only=True):
    kind: Literal["tool_call", "text", "error"]
    text: Text = ""
    data: dict[str, Any] | None = None


class CompleteBody(Held):
    data: Any = None
    text: str | None = None
    artifacts: list[Name] = []
    decision_report: dict[str, Any] | None = None
    usage: Usage | None = None
    verdict: NewVerdict | None = None


class VerdictBody(Held, kw_only=True):
    passed: bool
    evidence: dict[str, Any] | None = None
    note: Text | None = None


class FailBody(Held):
    reason: Name | None = None
    error: Text | None = None
    usage: Usage | None = None
    data: Any = None
    retry: bool = True
    provider: Name | None = None
    account: Name | None = None
    model: Name | None = None


class ReleaseBody(Held):
    reason: Text | None = None


class SpawnBody(Held, kw_only=True):
    tasks: list[NewTask]
    wait: bool = False
    name: Name | None = None


class OutcomeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a write came to. In a batch each has its own, and `error` where it was refused."""

    task_id: str
    status: str | None = None
    repeated: bool = False
    data: dict[str, Any] | None = None
    error: Problem | None = None


class Outcomes(msgspec.Struct, frozen=True):
    outcomes: list[OutcomeReply]


class HeartbeatReply(msgspec.Struct, frozen=True):
    task_id: str
    action: Literal["continue", "cancel", "lost", "yield"]
    reason: str | None = None
    slow_down_sec: float | None = None


class Heartbeats(msgspec.Struct, frozen=True):
    heartbeats: list[HeartbeatReply]


# -- batches -----------------------------------------------------------------------------------------------------


class TokenBatch(Fields):
    tokens: Annotated[list[Name], Meta(max_length=MOST_IN_BATCH)]
    reason: Text | None = None


class CompleteItem(Fields):
    token: Name
    data: Any = None
    text: str | None = None
    artifacts: list[Name] = []
    decision_report: dict[str, Any] | None = None
    usage: Usage | None = None
    verdict: NewVerdict | None = None


class CompleteBatch(Fields):
    reports: Annotated[list[CompleteItem], Meta(max_length=MOST_IN_BATCH)]


class FailItem(Fields):
    token: Name
    reason: Name | None = None
    error: Text | None = None
    usage: Usage | None = None
    data: Any = None
    retry: bool = True
    provider: Name | None = None
    account: Name | None = None
    model: Name | None = None


class FailBatch(Fields):
    problems: Annotated[list[FailItem], Meta(max_length=MOST_IN_BATCH)]


class HeartbeatItem(Fields):
    token: Name
    progress: Any = None
    usage: Usage | None = None


class HeartbeatBatch(Fields):
    heartbeats: Annotated[list[HeartbeatItem], Meta(max_length=MOST_IN_BATCH)]


class CancelBatch(Fields):
    task_ids: Annotated[list[Name], Meta(max_length=MOST_IN_BATCH)]
    reason: Text = "cancelled"
    version: int | None = None


class GetBatch(Fields):
    task_ids: Annotated[list[Name], Meta(max_length=MOST_IN_BATCH)]


# -- operating ---------------------------------------------------------------------------------------------------


class CancelBody(Fields):
    reason: Text = "cancelled"
    version: int | None = None


class CancelDagBody(Fields):
    """A DAG has no version: its tasks have theirs."""

    reason: Text = "cancelled"


class UpdateBody(Changes):
    """The changes, and why."""

    note: Text | None = None


class RerunIssueBody(Fields):
    task_id: Name | None = None


class ReviewBody(Fields):
    decision: Name
    note: Text | None = None
    at: float | None = None
    change: dict[str, Any] | None = None
    chain: bool = False
    version: int | None = None


class RedriveBody(Fields):
    signature: Name
    decision: Name = "retry"
    note: Text | None = None
    at: float | None = None


class PauseBody(Fields):
    type: Name | None = None
    reason: Text | None = None


class ResumeBody(Fields):
    type: Name | None = None


class Resumed(msgspec.Struct, frozen=True):
    resumed: bool


class Purged(msgspec.Struct, frozen=True):
    purged: int


class AgentBody(Fields):
    """What may be changed on an agent. A field that is not given stays."""

    status: Literal["active", "draining", "offline", "failed"] | None = None
    budget_remaining_usd: Annotated[float, Meta(ge=0, le=1e9)] | msgspec.UnsetType | None = msgspec.UNSET


class RuntimeHeartbeatBody(Fields):
    holding: Annotated[list[Name], Meta(max_length=10_000)] = []


class RuntimeBeatReply(msgspec.Struct, frozen=True):
    """Claims to stop, and claims held that were not named."""

    cancel: dict[str, str | None]
    lost: list[str]
    unnamed: list[str]
    slow_down_sec: float | None = None
    yields: dict[str, str] = {}
    """Claims that are asked to give their task back, and for what."""


class QuotaList(msgspec.Struct):
    """The quotas of all workspaces that have one."""

    quotas: list[QuotaInForce]


class SettingsBody(Fields):
    """Changes that are made together or not at all."""

    set: dict[str, Any] = {}
    unset: list[Name] = []
    profile: Name | None = None


class TokenBody(Fields):
    name: Name
    scopes: Annotated[list[Literal["read", "submit", "work", "operate", "admin", "server"]], Meta(min_length=1)]
    expires_at: float | None = None


class ClockBody(Fields):
    advance_sec: Annotated[float, Meta(ge=0, le=1e9)]


class ClockReply(msgspec.Struct, frozen=True):
    """The time now, and what the duties that came due have done."""

    now: float
    duties: dict[str, dict[str, int]]


# -- pages -------------------------------------------------------------------------------------------------------


class AgentList(msgspec.Struct, frozen=True):
    agents: list[Agent]


class TaskList(msgspec.Struct, frozen=True):
    tasks: list[Task]


class LetterList(msgspec.Struct, frozen=True):
    dead_letters: list[DeadLetter]


class EventPage(msgspec.Struct, frozen=True):
    """Events after a cursor; go on from `next`, also when there were none."""

    events: list[Event]
    next: int


class History(msgspec.Struct, frozen=True):
    """What happened to one task: its changes of state, the events, and its attempts."""

    transitions: list[Transition]
    events: list[Event]
    attempts: list[Attempt]


class AlertList(msgspec.Struct, frozen=True):
    alerts: list[Alert]


class FailureList(msgspec.Struct, frozen=True):
    failures: list[Pattern]


class SettingInForce(msgspec.Struct, frozen=True):
    """One setting as it is now, and where it comes from."""

    key: str
    value: Any
    source: str
    meaning: str


class SettingsList(msgspec.Struct, frozen=True):
    """The settings of a workspace, over the profile it has chosen."""

    settings: list[SettingInForce]
    profile: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: list[TokenInfo]


class BridgeList(msgspec.Struct, frozen=True):
    bridges: list[BridgeInfo]


class MetricSnapshots(msgspec.Struct, frozen=True):
    """What was measured at some times, the newest first."""

    snapshots: list[Metrics]


class SnapshotList(msgspec.Struct, frozen=True):
    """The newest first."""

    snapshots: list[Snapshot]


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
