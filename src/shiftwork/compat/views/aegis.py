"""Aegis: plain UUIDs, six statuses, an attempt that counts from one, events with colons."""

from __future__ import annotations

import json
from typing import Any

from shiftwork.model import reasons
from shiftwork.model.states import SETTLED, WAITING, State
from shiftwork.views.view import (
    FAILURE,
    TIME,
    UUID,
    Field,
    Pair,
    Record,
    View,
    both,
    made,
    one_of,
    output_of,
    read,
    sent,
    task_output,
    time_out,
    words,
)

SUMMARY_CHARS = 200

STATES = {
    State.CREATED: "queued",
    State.PENDING: "queued",
    State.WAITING_APPROVAL: "queued",
    State.READY: "queued",
    State.CLAIMED: "dispatched",
    State.RUNNING: "running",
    State.VALIDATING: "running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.RETRYING: "queued",
    State.DEAD_LETTERED: "failed",
    State.CANCELLED: "cancelled",
}

_NAMED = (reasons.RUNTIME_OFFLINE, reasons.TIMEOUT, reasons.AGENT_ERROR, reasons.CANCELLED)
REASONS = {
    **dict.fromkeys(reasons.MEANING, reasons.AGENT_ERROR),
    **{reason: reason for reason in _NAMED},
    reasons.CLAIM_EXPIRED: reasons.TIMEOUT,
    reasons.HEARTBEAT_TIMEOUT: reasons.TIMEOUT,
    reasons.APPROVAL_REJECTED: reasons.CANCELLED,
}


def reason_out(reason: str) -> str:
    """One of the document's four reasons; an agent's own reason becomes an error of its tool."""
    return REASONS.get(reason, reasons.AGENT_ERROR)


def attempt(task: Record) -> Any:
    """The number of this execution: a failed task has already counted its own failure."""
    attempts = task.get("attempts")
    if attempts is None:
        return None
    return max(1, attempts + (not _has_failed(task)))


def _has_failed(task: Record) -> bool:
    """Whether the last execution failed; the task may have been cancelled since."""
    if task.get("status") != State.CANCELLED:
        return task.get("status") in SETTLED
    claimed_at, failed_at = task.get("claimed_at"), task.get("failed_at")
    return claimed_at is not None and failed_at is not None and failed_at >= claimed_at


def _failure(task: Record) -> Any:
    if task.get("status") == State.CANCELLED:
        return reasons.CANCELLED
    reason = task.get("failure_reason")
    return None if reason is None else reason_out(reason)


def _of_this_execution(name: str) -> Field:
    """A time that a task loses when it returns to the queue."""

    def make(task: Record) -> Any:
        at = task.get(name)
        return None if at is None or task.get("status") in WAITING else time_out(at)

    return made(name, make)


def text_out(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def summary_in(text: Any) -> Any:
    if not isinstance(text, str):
        raise TypeError("expected text")
    return text if len(text) <= SUMMARY_CHARS else text[: SUMMARY_CHARS - 1] + "…"


OUTPUT = Pair(text_out)


TASK = (
    read("id", "id", UUID),
    both("workspace_id"),
    both("target_agent_id", "agent_id"),
    both("issue_id"),
    read("status", "status", Pair(lambda state: STATES[State(state)])),
    both("trigger_type", "trigger_type", one_of("assignment", "mention", "chat", "autopilot", "manual_rerun")),
    both("trigger_comment_id"),
    both("trigger_summary", "trigger_summary", Pair(back=summary_in)),
    both("session_id"),
    both("work_dir"),
    both("force_fresh_session"),
    read("result.data", "output", OUTPUT)._replace(make=task_output),
    made("attempt", attempt),
    both("max_attempts"),
    made("failure_reason", _failure),
    read("retry_of", "parent_task_id", UUID),
    read("claim.runtime_id", "runtime_id"),
    read("progress"),
    read("last_error", "error"),
    _of_this_execution("claimed_at"),
    _of_this_execution("started_at"),
    read("completed_at", "completed_at", TIME),
    read("created_at", "created_at", TIME),
    read("updated_at", "updated_at", TIME),
)

RESULT = (
    read("task_id", "task_id", UUID),
    both("status", "status", words({"success": "completed"})),
    both("data", "output", OUTPUT)._replace(make=output_of),
    both("error"),
    read("completed_at", "completed_at", TIME),
)

# The document has no dead letters; in its words they are failed tasks.
DEAD_LETTER = (
    read("task_id", "id", UUID),
    read("reason", "failure_reason", Pair(reason_out)),
    read("error"),
    read("retry_count", "attempt"),
    read("dead_lettered_at", "failed_at", TIME),
)

AGENT = (
    both("id", "agent_id"),
    both("type"),
    both("capabilities"),
    read("status", "status", words({"failed": "offline"})),
    read("last_heartbeat", "last_heartbeat", TIME),
)

EVENTS = {
    "task.created": "task:queued",
    "task.ready": "task:queued",
    "task.retrying": "task:queued",
    "task.waiting": "task:queued",
    "task.claimed": "task:dispatch",
    "task.started": "task:running",
    "task.progress": "task:progress",
    "task.message": "task:message",
    "task.completed": "task:completed",
    # Each failed attempt is a failed task here; our `task.failed` would report the last one twice.
    "task.attempt_failed": "task:failed",
    "task.displaced": "task:failed",
    "task.cancelled": "task:cancelled",
}

VIEW = View(
    name="aegis",
    names_workspaces=True,
    ids=UUID,
    states=STATES,
    task=TASK,
    result=RESULT,
    dead_letter=DEAD_LETTER,
    agent=AGENT,
    failure=(*FAILURE, sent("reason", "failure_reason")),
    events=EVENTS,
    only_these_events=True,
    reasons=Pair(reason_out, words({reason: reason for reason in reasons.MEANING}).back),
    required=("workspace_id", "agent_id"),
    defaults={"type": "agent"},
)
