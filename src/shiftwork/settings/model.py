"""Every setting of the queue, its default (the profile `standard`), and how levels of settings add up.

A value is found at the task, else its type, else the workspace, else the profile, else here. Keys are
written with dots (`retry.max_delay_sec`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model import reasons
from shiftwork.model.bounds import MAX_NAME

Seconds = Annotated[float, Meta(ge=0)]
MONTH_SEC = 30 * 86_400.0
Count = Annotated[int, Meta(ge=0)]
Level = Literal["high", "medium", "low"]
ModelOrder = Literal["listed", "cheapest"]

AgeingRate = Annotated[float, Meta(ge=0, le=10)]
"""Points of priority a minute. Above ten, ranks since 1970 would reach into those of urgent work."""


class InForce(msgspec.Struct, frozen=True):
    """One setting in force, with its source."""

    key: str
    value: Any
    source: str
    meaning: str


class SettingsInForce(msgspec.Struct, frozen=True):
    """The settings of a workspace, and the profile under them."""

    settings: list[InForce]
    profile: str


class SettingsChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes applied all or none."""

    set: dict[str, Any] = {}
    unset: list[Annotated[str, Meta(min_length=1, max_length=255)]] = []
    profile: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all groups of settings."""


class Escalation(Part, frozen=True):
    """After this long in the queue a task counts as a better level."""

    after_sec: Seconds
    to_level: Level


class AgeBoost(Part, frozen=True):
    """Past the threshold the score improves by a share of the base priority per minute."""

    threshold_sec: Seconds
    pct_per_min: float


class Deadline(Part, frozen=True):
    urgent_sec: Seconds | None = 120
    preempt_running: bool = False
    on_passed: Literal["alert", "cancel", "fail"] = "alert"


class FairShare(Part, frozen=True):
    """Which tasks alternate, and into how many shares their keys are hashed."""

    by: Annotated[str, Meta(max_length=MAX_NAME)] = "none"
    shares: Annotated[int, Meta(ge=1, le=64)] = 16


Strategy = Literal["exponential", "fixed", "immediate", "schedule"]


class Retry(Part, frozen=True):
    """When a failed task is retried, after how long, and by which agent."""

    mode: Literal["same_task", "new_task"] = "same_task"
    strategy: Strategy = "exponential"
    initial_delay_sec: Seconds = 10
    backoff_multiplier: Annotated[float, Meta(ge=1)] = 2.0
    max_delay_sec: Seconds | None = 300
    schedule_sec: tuple[Seconds, ...] = ()
    jitter: bool = True
    jitter_range: tuple[float, float] = (0.5, 1.5)
    retry_on: tuple[str, ...] = (
        reasons.TIMEOUT,
        reasons.CRASH,
        reasons.RATE_LIMIT,
        reasons.INVALID_OUTPUT,
    )
    no_retry_on: tuple[str, ...] = (reasons.AUTH_FAILURE, reasons.BUDGET_EXCEEDED, reasons.CANCELLED)
    otherwise: Literal["retry", "fail"] = "retry"
    exclude_triggers: tuple[str, ...] = ()
    agent_preference: Literal["any", "different", "same_runtime"] = "any"
    priority_delta: float = 0
    keep_position: bool = True


class Poison(Part, frozen=True):
    """A task that fails with several agents is a bad task, not a bad agent."""

    min_agents: Count = 2
    min_attempts: Count = 3


class Session(Part, frozen=True):
    max_failed_resumes: Count | None = 2


class Heartbeat(Part, frozen=True):
    scope: Literal["runtime", "task"] = "task"
    log_every_sec: Seconds = 0


class Lease(Part, frozen=True):
    mode: Literal["heartbeat", "fixed"] = "heartbeat"


class Idempotency(Part, frozen=True):
    source: Literal["caller", "payload_hash", "params_hash", "required", "none"] = "caller"
    scope_states: tuple[str, ...] = (
        "pending",
        "waiting_approval",
        "ready",
        "claimed",
        "running",
        "validating",
        "retrying",
        "completed",
    )
    window_sec: Seconds | None = None
    on_duplicate: Literal["return_existing", "reject", "merge"] = "return_existing"


class Breaker(Part, frozen=True):
    """Stops a type that keeps failing, and tests it later with one task."""

    failure_threshold: Count = 5
    half_open_after: Seconds = 60
    cooldown_seconds: Seconds = 300
    count: Literal["dead_letter", "every_failure"] = "every_failure"
    reset_on_success: Literal["any", "half_open_only"] = "any"
    ignore: tuple[str, ...] = (
        reasons.RATE_LIMIT,
        reasons.CANCELLED,
        reasons.INVALID_INPUT,
        reasons.BUDGET_EXCEEDED,
    )


class RateLimit(Part, frozen=True):
    classify: bool = True
    matching: Literal["messages", "substrings"] = "messages"
    counts_attempt: bool = False
    max_waits: Count = 20
    base_sec: Seconds = 60
    max_wait_sec: Seconds = 3600
    max_window_sec: Seconds = 8 * 86_400
    jitter_range: tuple[float, float] = (1.0, 1.1)


class Cooldown(Part, frozen=True):
    others: Annotated[float, Meta(ge=0, le=1)] = 1.0


class Quotas(Part, frozen=True):
    high: Count | None = None
    medium: Count | None = None
    low: Count | None = None


class Cancel(Part, frozen=True, rename={"from_states": "from"}):
    from_states: tuple[str, ...] = (
        "pending",
        "waiting_approval",
        "ready",
        "claimed",
        "running",
        "validating",
        "retrying",
        "failed",
        "dead_lettered",
    )


class Purge(Part, frozen=True):
    mode: Literal["cancel", "delete"] = "cancel"


class Guard(Part, frozen=True):
    """Tasks that match every given field need approval."""

    type: str | None = None
    tool_name: str | None = None
    tag: str | None = None
    created_by: str | None = None
    trigger_type: str | None = None
    min_cost_usd: float | None = None
    on_expire: Literal["reject", "approve"] = "reject"
    expire_after_sec: Seconds | None = None


class Spawn(Part, frozen=True):
    """Bounds on subtasks."""

    max_depth: Count = 10
    max_subtasks: Count = 1_000


class Budget(Part, frozen=True):
    """What a workspace may spend, besides the budgets of its agents, DAGs and tasks."""

    daily_usd: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    default_estimate_usd: Annotated[float, Meta(ge=0, le=1e9)] = 0.25


class Batches(Part, frozen=True):
    """Work that is sent to a provider in batches."""

    gather_sec: Seconds = 600
    max_wait_sec: Seconds = 86_400


class Maintenance(Part, frozen=True):
    """How often each maintenance job runs."""

    presence_sec: Seconds = 0.25
    reclaim_sec: Seconds = 1
    retry_promoter_sec: Seconds = 5
    gates_sec: Seconds = 1
    rerank_sec: Seconds = 1
    dependencies_sec: Seconds = 5
    budgets_sec: Seconds = 1
    notifications_sec: Seconds = 1
    triggers_sec: Seconds = 0.5
    search_sec: Seconds = 1
    metrics_sec: Seconds = 30
    batches_sec: Seconds = 60
    snapshot_sec: Seconds = 60
    dead_letter_sec: Seconds = 300
    stale_sec: Seconds = 600
    retention_sec: Seconds = 60


class Alerts(Part, frozen=True):
    """When to raise alerts."""

    queue_depth: Count | None = None
    failure_rate: Annotated[float, Meta(ge=0, le=1)] | None = 0.5
    failure_count: Annotated[int, Meta(ge=1)] = 20
    failure_window_sec: Seconds = 300
    stuck_at: Annotated[float, Meta(ge=0)] | None = 0.8
    backlog_age_sec: Seconds | None = 3600
    dead_rows: Annotated[float, Meta(ge=0)] | None = 0.5
    transaction_sec: Seconds | None = 300


class FrictionTask(Part, frozen=True):
    """The task created about repeated failures."""

    type: str
    title: str = "Find out why {type} keeps failing"
    priority: Annotated[float, Meta(ge=0, le=100)] = 40
    payload: dict[str, Any] = {}


class Friction(Part, frozen=True, kw_only=True):
    """Creates a task about a type that keeps failing in the same way."""

    failure_rate: Annotated[float, Meta(ge=0, le=1)] = 0.5
    min_count: Annotated[int, Meta(ge=1)] = 10
    window_sec: Seconds = 3600
    create: FrictionTask


class Artifacts(Part, frozen=True):
    keep_unreferenced_sec: Seconds = 86_400


class Snapshots(Part, frozen=True):
    """Copies of the whole queue in files."""

    wanted: bool = False
    keep: Annotated[int, Meta(ge=1)] = 10
    keep_sec: Seconds | None = None


class Bounds(Part, frozen=True):
    """How much one call may carry."""

    body_bytes: Count = 1_048_576
    result_bytes: Count = 8_388_608
    text_chars: Count = 65_536
    depth: Count = 64
    batch: Count = 10_000
    dependencies: Count = 1_000
    step_bytes: Count = 8_388_608
    step_inline_bytes: Count = 65_536
    artifact_bytes: Count = 1_073_741_824
    steps: Count = 10_000


class Settings(Part, frozen=True):
    """All settings of one task in force."""

    ordering: Literal["effective", "strict_level", "static", "fifo"] = "effective"
    priority_boost_per_minute: AgeingRate = 0.1
    type_boost: float = 0
    escalation: tuple[Escalation, ...] = ()
    age_boost: AgeBoost | None = None
    starvation_threshold_sec: Seconds | None = None
    deadline: Deadline = Deadline()
    requeue_front: bool = False
    fair_share: FairShare = FairShare()
    affinity_sec: Seconds = 0

    max_attempts: Annotated[int, Meta(ge=1)] = 3
    retry: Retry = Retry()
    on_exhausted: Literal["dead_letter", "stay_failed"] = "dead_letter"
    poison: Poison | None = Poison()
    delivery: Literal["at_least_once", "at_most_once"] = "at_least_once"
    session: Session = Session()

    claim_ttl_sec: Seconds | None = 60
    auto_start: bool = False
    on_claim_expired: Literal["fail", "release", "fail_uncounted"] = "fail"
    lease: Lease = Lease()
    heartbeat: Heartbeat = Heartbeat()
    heartbeat_interval_sec: Seconds = 30
    heartbeat_timeout_sec: Seconds | None = 90
    health_checks: Count = 3
    agent_timeout_sec: Seconds | None = 300
    runtime_offline_sec: Seconds | None = None
    on_stale: Literal["fail", "reclaim", "requeue"] = "fail"
    reclaim_counts_attempt: bool = False
    max_reclaims: Count | Literal["max_attempts"] | None = "max_attempts"
    timeout_sec: Seconds | None = 3600
    timeout_grace: Annotated[float, Meta(ge=1)] = 1.0
    timeout_from: Literal["start", "claim"] = "start"
    max_concurrent_tasks: Annotated[int, Meta(ge=1)] | None = 1
    require_registration: bool = False
    recover: Literal["fail", "requeue", "keep"] = "fail"

    on_dependency_failed: Literal["wait", "cancel", "retry_chain", "continue"] = "wait"
    on_dependency_cancelled: Literal["cancel", "wait", "satisfy"] = "cancel"
    missing_dependency: Literal["wait", "reject"] = "wait"
    dependency_wait_sec: Seconds | None = 300
    dependency_wait_applies_to: Literal["missing", "all", "notice"] = "missing"

    idempotency: Idempotency = Idempotency()
    allowed_types: tuple[str, ...] | None = None
    serialize_by: Literal["agent_type", "key"] | None = None
    require_decision_report: bool = False
    on_missing_report: Literal["refuse", "fail"] = "refuse"
    guards: tuple[Guard, ...] = ()
    spawn: Spawn = Spawn()

    circuit_breaker: Breaker | None = Breaker()
    rate_limit: RateLimit = RateLimit()
    cooldown: Cooldown = Cooldown()
    use_before_reset: bool = False
    model_order: ModelOrder = "listed"
    budget: Budget = Budget()

    max_queue_size: Count | None = None
    priority_quotas: Quotas = Quotas()
    overflow: Literal["displace_to_dlq", "drop_oldest_low", "reject"] = "displace_to_dlq"
    warning_at: Annotated[float, Meta(ge=0, le=1)] = 0.80
    critical_at: Annotated[float, Meta(ge=0, le=1)] = 0.95
    min_agents: Count = 0
    alerts: Alerts = Alerts()
    friction: Friction | None = None

    cancel: Cancel = Cancel()
    purge: Purge = Purge()
    archive_after_sec: Seconds | None = MONTH_SEC
    keep_archived_sec: Seconds | None = MONTH_SEC
    keep_events_sec: Seconds | None = MONTH_SEC
    artifacts: Artifacts = Artifacts()
    snapshots: Snapshots = Snapshots()
    poll_interval_sec: Seconds = 5
    fallback_poll_sec: Seconds = 30
    wakeup: Literal["notify", "poll"] = "notify"
    lock_timeout_sec: Seconds = 10
    claim_folder: str | None = None
    operation_max_sec: Seconds = 30
    batches: Batches = Batches()
    maintenance: Maintenance = Maintenance()
    bounds: Bounds = Bounds()


OF_SERVER = ("maintenance", "operation_max_sec", "snapshots")
"""Settings that the whole server reads from the workspace `default`: over HTTP, changing them needs the scope
`server`."""

REACH: dict[str, Literal["workspace", "type"]] = {
    "ordering": "workspace",
    "fair_share": "workspace",
    "affinity_sec": "workspace",
    "allowed_types": "workspace",
    "require_registration": "workspace",
    "max_queue_size": "workspace",
    "priority_quotas": "workspace",
    "overflow": "workspace",
    "warning_at": "workspace",
    "critical_at": "workspace",
    "min_agents": "workspace",
    "alerts": "workspace",
    "friction": "workspace",
    "budget": "workspace",
    "wakeup": "workspace",
    "lock_timeout_sec": "workspace",
    "claim_folder": "workspace",
    "operation_max_sec": "workspace",
    "maintenance": "workspace",
    "bounds": "workspace",
    "artifacts": "workspace",
    "snapshots": "workspace",
    "type_boost": "type",
    "guards": "type",
    "spawn": "type",
    "circuit_breaker": "type",
    "cooldown": "type",
    "use_before_reset": "type",
    "model_order": "type",
}
"""The lowest level that may set a key; a task may set what is not named here. These protect the workspace
from its submitters, or mean nothing for less than a type."""
