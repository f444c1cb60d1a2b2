"""The AI co-scientist: agent types, three priority levels, assignments and task results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from shiftwork.model import reasons
from shiftwork.model.states import State
from shiftwork.settings.model import Strategy
from shiftwork.views.view import (
    FAILURES,
    TIME,
    Pair,
    Record,
    View,
    both,
    find,
    folded,
    made,
    one_of,
    output_of,
    own_id,
    read,
    sent,
    time_out,
    words,
)

STATES = {
    State.CREATED: "Pending",
    State.PENDING: "Pending",
    State.WAITING_APPROVAL: "Pending",
    State.READY: "Pending",
    State.CLAIMED: "Assigned",
    State.RUNNING: "Executing",
    State.VALIDATING: "Executing",
    State.COMPLETED: "Completed",
    State.FAILED: "Failed",
    State.RETRYING: "Retrying",
    State.DEAD_LETTERED: "Failed",
    State.CANCELLED: "Cancelled",
}

LEVELS = {"high": 20, "medium": 50, "low": 70}
AGENT_TYPES = ("Generation", "Reflection", "Ranking", "Evolution", "Proximity", "MetaReview")


def priority_out(priority: float) -> str:
    if priority < 30:
        return "High"
    return "Medium" if priority < 60 else "Low"


def priority_in(level: Any) -> int:
    found = LEVELS.get(level.strip().lower()) if isinstance(level, str) else None
    if found is None:
        raise ValueError("expected High, Medium or Low")
    return found


def _level(task: Record) -> Any:
    """The current level: a task that has waited long enough has a higher one."""
    priority = task.get("priority")
    escalated = find(task, "priority_parts.escalation") or 0
    return None if priority is None else priority_out(priority - escalated)


def worker_status(agent: Record) -> str:
    """Active means busy, idle means free; an agent that can no longer take work is failed."""
    if agent.get("status") in {"failed", "offline"}:
        return "failed"
    return "active" if agent.get("current_tasks") else "idle"


_TYPES = {folded(word): word for word in AGENT_TYPES}


def announced(agent: dict[str, Any]) -> dict[str, Any]:
    """A worker's capabilities are the agent types it serves; other fields stay unchanged."""
    stated = agent.get("capabilities") or []
    types = [_TYPES[folded(word)] for word in stated if isinstance(word, str) and folded(word) in _TYPES]
    if not types or agent.get("types") is not None:
        return agent
    return {**agent, "types": types}


REASONS = words(
    {
        **{reason: reason for reason in reasons.MEANING},
        reasons.HEARTBEAT_TIMEOUT: "worker timeout",
        reasons.RESOURCE_UNAVAILABLE: "temporary resource unavailable",
        reasons.NETWORK: "network error",
        reasons.TRANSIENT_API: "transient API failure",
        reasons.INVALID_INPUT: "invalid task parameters",
        reasons.SAFETY_VIOLATION: "safety violation",
        reasons.RESOURCE_PERMANENT: "permanent resource error",
        reasons.EXHAUSTED: "maximum retries exceeded",
    }
)

STRATEGIES = words({word: word for word in get_args(Strategy)})

TASK = (
    made("id", own_id),
    sent("id", "id"),
    both("type", "agent_type", one_of(*AGENT_TYPES)),
    made("priority", _level),
    sent("priority", "priority", Pair(back=priority_in)),
    read("priority", "original_priority", Pair(priority_out)),
    read("effective_priority", "priority_score"),
    read("age_minutes", "minutes_in_queue"),
    both("payload"),
    both("dependencies"),
    both("max_attempts", "retry_policy.max_attempts"),
    both("retry.strategy", "retry_policy.backoff_strategy", STRATEGIES),
    both("retry.backoff_multiplier", "retry_policy.backoff_base"),
    both("retry.max_delay_sec", "retry_policy.backoff_max"),
    both("timeout_sec", "timeout"),
    both("deadline", "deadline", TIME),
    both("created_by"),
    both("tags"),
    read("created_at", "created_at", TIME),
    read("status", "status", Pair(lambda state: STATES[State(state)])),
    read("blocked"),
    read("blocked_reason"),
    read("claim.agent_id", "worker_id"),
    read("claim.assignment_id", "assignment_id"),
    read("progress"),
    read("version"),
    read("attempts", "retry_count"),
    read("last_error", "error"),
    read("failure_reason", "failure_reason", REASONS),
    read("failure_history", "failure_history", FAILURES),
    read("available_at", "available_at", TIME),
    read("cancel_reason"),
)

ASSIGNMENT = (
    read("claim.assignment_id", "assignment_id"),
    read("claim.execution_deadline", "deadline", TIME),
    read("claim.ack_required_by", "acknowledgment_required_by", TIME),
    read("claim.heartbeat_interval_sec", "heartbeat_interval"),
)

RESULT = (
    made("task_id", own_id),
    both("status", "status", words({"success": "Completed", "failed": "Failed"})),
    both("data", "result")._replace(make=output_of),
    both("error"),
    read("execution_time_sec", "execution_time"),
    read("worker_id"),
    read("completed_at", "completed_at", TIME),
)

DEAD_LETTER = (
    made("task_id", own_id),
    read("type", "agent_type"),
    read("payload"),
    read("error"),
    read("reason", "reason", REASONS),
    read("retry_count", "failure_count"),
    read("failure_history", "failure_history", FAILURES),
    read("dead_lettered_at", "dead_lettered_at", TIME),
    read("reviewed"),
    read("resolution"),
)

AGENT = (
    both("id", "worker_id"),
    both("capabilities"),
    both("types", "agent_types"),
    made("status", worker_status),
    read("last_heartbeat", "heartbeat", TIME),
    read("heartbeat_interval_sec", "heartbeat_interval"),
    both("max_concurrent_tasks"),
    both("isolation_group"),
    sent("restarted", "restarted"),
)


def _recent_failures(found: Iterable[Record]) -> list[dict[str, Any]]:
    return [
        {
            "task_id": failed["task_id"],
            "agent_type": failed["type"],
            "reason": None if failed["reason"] is None else REASONS.out(failed["reason"]),
            "error": failed["error"],
            "worker_id": failed["agent_id"],
            "at": time_out(failed["at"]),
        }
        for failed in found
    ]


QUEUE = (
    *(read(f"depth.{level}") for level in LEVELS),
    read("agents.active", "workers.active"),
    read("agents.idle", "workers.idle"),
    read("agents.failed", "workers.failed"),
    read("completed_last_minute", "throughput"),
    read("average_wait_sec", "average_wait_time"),
    read("recent_failures", "failed_tasks", Pair(_recent_failures)),
    read("capacity_warnings"),
    read("completions"),
    read("paused"),
    read("calculated_at", "calculated_at", TIME),
)


def level_in(level: Any) -> str:
    priority_in(level)
    return str(level).lower()


def statuses_in(found: Any) -> list[str]:
    """Our states for one or several of the document's."""
    stated = [found] if isinstance(found, str) else found
    return sorted({str(state) for word in stated for state in VIEW.statuses_in(word)})


PURGE = (
    sent("status", "status", Pair(back=statuses_in)),
    sent("type", "agent_type"),
    sent("level", "priority", Pair(back=level_in)),
    sent("tag", "tag"),
    sent("created_before", "created_before", TIME),
    sent("held", "held"),
)

CLAIMS = {"worker_id": "agent_id", "assignment_id": "token", "agent_types": "types"}

VIEW = View(
    name="coscientist",
    own_names=True,
    states=STATES,
    task=TASK,
    result=RESULT,
    dead_letter=DEAD_LETTER,
    agent=AGENT,
    assignment=ASSIGNMENT,
    queue=QUEUE,
    purge=PURGE,
    claims=CLAIMS,
    announced=announced,
    required=("agent_type",),
    agent_defaults={"restarted": True},  # registering announces that the agent is free
    reasons=REASONS,
)
