"""Loki: camelCase tasks in five queues, priorities 1 to 10, retries counted from zero."""

from __future__ import annotations

import math
from typing import Any

from shiftwork.model.states import State
from shiftwork.views.view import (
    FAILURES,
    TIME,
    UUID,
    UUIDS,
    Pair,
    Record,
    View,
    both,
    find,
    made,
    output_of,
    own_id,
    plain_id,
    read,
    sent,
    task_output,
    words,
)


def priority_out(priority: float) -> int:
    return min(10, max(1, 10 - math.floor(priority / 10)))


def priority_in(priority: Any) -> float:
    if isinstance(priority, bool) or not isinstance(priority, int | float) or not 1 <= priority <= 10:
        raise ValueError("expected 1 to 10; 10 is the most urgent")
    return (10 - priority) * 10


def _id(task: Record) -> Any:
    name = own_id(task)
    return None if name is None else plain_id(name)


def _holder(task: Record) -> Any:
    """A finished task keeps the name of its agent; a retried one has none."""
    if task.get("status") in _WAITING:
        return None
    return find(task, "claim.agent_id") or find(task, "result.worker_id")


def _ended(task: Record) -> Any:
    """`completedAt` is the end of the last attempt, whatever its outcome."""
    ends = [end for end in (task.get("completed_at"), task.get("failed_at")) if end is not None]
    return TIME.out(max(ends)) if ends else None


PRIORITY = Pair(priority_out, priority_in)

STATES = {
    State.CREATED: "pending",
    State.PENDING: "pending",
    State.WAITING_APPROVAL: "pending",
    State.READY: "pending",
    State.CLAIMED: "in-progress",
    State.RUNNING: "in-progress",
    State.VALIDATING: "in-progress",
    State.COMPLETED: "completed",
    State.FAILED: "dead-letter",
    State.RETRYING: "pending",
    State.DEAD_LETTERED: "dead-letter",
    State.CANCELLED: "cancelled",
}

_WAITING = frozenset(state.value for state, queue in STATES.items() if queue == "pending")


def _reason(text: str) -> str:
    """`Parent {id} cancelled`, with the parent's id in this view."""
    return " ".join(plain_id(word) for word in text.split(" ")) if text.startswith("Parent ") else text


TASK = (
    made("id", _id),
    sent("id", "id"),
    both("idempotency_key", "idempotencyKey"),
    both("type"),
    both("priority", "priority", PRIORITY),
    read("priority_tier", "priorityTier"),
    both("dependencies", "dependencies", UUIDS),
    both("payload"),
    read("status", "status", Pair(lambda state: STATES[State(state)])),
    read("created_at", "createdAt", TIME),
    made("claimedBy", _holder),
    read("claim.claimed_at", "claimedAt", TIME),
    both("timeout_sec", "timeout"),
    read("attempts", "retries"),
    both("max_attempts", "maxRetries"),
    both("retry.initial_delay_sec", "backoffSeconds"),
    read("available_at", "availableAt", TIME),
    read("last_error", "lastError"),
    made("completedAt", _ended),
    read("result.status", "result.status"),
    read("result.data", "result.output")._replace(make=task_output),
    read("result.decision_report", "result.decisionReport"),
    read("incomplete"),
    read("cancel_reason", "cancelReason", Pair(_reason)),
    read("cancelled_at", "cancelledAt", TIME),
    read("failure_history", "failureHistory", FAILURES),
)

OUTCOMES = words({"success": "success", "failed": "failed"})

RESULT = (
    made("id", _id),
    both("status", "status", OUTCOMES),
    both("data", "output")._replace(make=output_of),
    both("decision_report", "decisionReport"),
    both("error"),
    sent("error", "lastError"),
    sent("success", "success"),
    sent("status", "result.status", OUTCOMES),
    sent("data", "result.output"),
    sent("decision_report", "result.decisionReport"),
    sent("error", "result.error"),
    read("completed_at", "completedAt", TIME),
)

RESOLUTIONS = words({"retry_later": "wait+retry"})

DEAD_LETTER = (
    made("id", _id),
    read("type"),
    read("payload"),
    read("error", "lastError"),
    read("retry_count", "retries"),
    read("failure_history", "failureHistory", FAILURES),
    read("dead_lettered_at", "deadLetteredAt", TIME),
    read("reviewed"),
    read("resolution", "resolution", RESOLUTIONS),
)

AGENT = (
    both("id", "agent_id"),
    both("type", "agent_type"),
    both("types", "agent_capabilities"),  # the task types it takes
    read("status"),
    read("last_heartbeat", "lastHeartbeat", TIME),
)

BREAKER = (
    read("state"),
    read("failures"),
    read("last_failure", "lastFailure", TIME),
    read("opened_at", "openedAt", TIME),
    read("half_open_at", "halfOpenAt", TIME),
)

VIEW = View(
    name="loki",
    own_names=True,
    ids=UUID,
    states=STATES,
    task=TASK,
    result=RESULT,
    dead_letter=DEAD_LETTER,
    agent=AGENT,
    breaker=BREAKER,
    events={"queue.slowdown": "SLOWDOWN"},
    resolutions=RESOLUTIONS,
    claims={"agent_capabilities": "types"},
    # A failure moves the task to pending or dead-letter in one step; no queue holds it in between.
    passing=frozenset({State.FAILED}),
)
