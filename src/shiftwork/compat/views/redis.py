"""The Redis Streams protocol: consumers, message ids, five statuses, retries without the first try."""

from __future__ import annotations

from typing import Any

from shiftwork.model.states import CLAIMED_STATES, State
from shiftwork.views.view import (
    TIME,
    Pair,
    Record,
    View,
    both,
    made,
    output_of,
    own_id,
    read,
    sent,
    task_output,
    words,
)

STATES = {
    State.CREATED: "queued",
    State.PENDING: "queued",
    State.WAITING_APPROVAL: "waiting_approval",
    State.READY: "queued",
    State.CLAIMED: "running",
    State.RUNNING: "running",
    State.VALIDATING: "running",
    State.COMPLETED: "succeeded",
    State.FAILED: "failed",
    State.RETRYING: "queued",
    State.DEAD_LETTERED: "failed",
    State.CANCELLED: "failed",
}


def retries_in(retries: Any) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError("expected a whole number, 0 or more")
    return retries + 1


def _error(task: Record) -> Any:
    return "cancelled" if task.get("status") == State.CANCELLED else task.get("last_error")


def _failed_at(task: Record) -> Any:
    moment = task.get("dead_lettered_at") or task.get("failed_at")
    return None if moment is None else TIME.out(moment)


RETRIES = Pair(lambda attempts: attempts - 1, retries_in)
OUTCOMES = words({"success": "succeeded"})

TASK = (
    made("task_id", own_id),
    sent("id", "task_id"),
    both("idempotency_key"),
    both("type"),
    both("tool_name"),
    both("payload"),
    read("status", "status", Pair(lambda state: STATES[State(state)])),
    read("claim.agent_id", "consumer"),
    read("claim.assignment_id", "message_id"),
    read("progress"),
    read("attempts", "retry_count"),
    both("max_attempts", "max_retries", RETRIES),
    made("error", _error),
    read("result.data", "result")._replace(make=task_output),
    made("failed_at", _failed_at),
    read("created_at", "created_at", TIME),
)

RESULT = (
    made("task_id", own_id),
    both("status", "status", OUTCOMES),
    both("data", "result")._replace(make=output_of),
    both("error"),
    read("worker_id", "worker"),
)

RESOLUTIONS = words({"modify_and_retry": "replay", "retry": "replay"})

DEAD_LETTER = (
    made("task_id", own_id),
    read("tool_name"),
    read("payload"),
    read("error"),
    read("retry_count"),
    read("dead_lettered_at", "failed_at", TIME),
    read("reviewed"),
    read("resolution", "resolution", RESOLUTIONS),
)

AGENT = (
    both("id", "consumer"),
    read("status"),
    read("last_heartbeat", "last_heartbeat", TIME),
)

EVENTS = {
    "task.created": "task.created",
    "task.claimed": "task.claimed",
    "task.heartbeat": "task.heartbeat",
    "task.reclaimed": "task.reclaimed",
    "task.completed": "task.succeeded",
    # Once per attempt, with `final`; our `task.failed` would report the last one twice.
    "task.attempt_failed": "task.failed",
    "task.cancelled": "task.failed",
    "task.dead_lettered": "task.dlq",
    "entry.refused": "task.dlq",
    "approval.requested": "approval.requested",
    "approval.approved": "approval.approved",
    "approval.rejected": "approval.rejected",
}

VIEW = View(
    name="redis",
    own_names=True,
    states=STATES,
    task=TASK,
    result=RESULT,
    dead_letter=DEAD_LETTER,
    agent=AGENT,
    events=EVENTS,
    only_these_events=True,
    resolutions=RESOLUTIONS,
    claims={"consumer": "agent_id", "worker": "agent_id"},
    # Delivered and not acknowledged; Redis calls it pending, which means something else everywhere else.
    filters={"unacked": CLAIMED_STATES},
    # `failed` is final here; a failure that will be retried shows as an event only.
    passing=frozenset({State.FAILED}),
    defaults={"type": "tool"},
)
