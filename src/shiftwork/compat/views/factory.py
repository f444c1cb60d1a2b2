"""The agent factory: our own names almost everywhere, with states in upper case."""

from __future__ import annotations

from typing import Any

from shiftwork.model.states import State
from shiftwork.views.view import (
    FAILURES,
    TIME,
    Pair,
    Record,
    View,
    both,
    find,
    made,
    output_of,
    read,
    same,
    sent,
    task_output,
    words,
)

STATES = {
    **{state: state.upper() for state in State},
    State.WAITING_APPROVAL: "PENDING",
}


def _failure(task: Record) -> Any:
    """The text of the last failure, or the queue's reason if there is no text."""
    return task.get("last_error") or task.get("failure_reason")


def _artifacts(task: Record) -> list[Any]:
    """Always a list, since the document has an empty one before there is a result."""
    return find(task, "result.artifacts") or []


def _data(task: Record) -> Any:
    """Set on completion; rejected or failed outputs are only in the result."""
    return task_output(task) if task.get("status") in {State.COMPLETED, State.VALIDATING} else None


def _validation(task: Record) -> Any:
    """The document's word for no validation, even if no output is required, so that a task can be resubmitted."""
    return find(task, "output.validation") or "none"


VERDICT = Pair(lambda verdict: {**verdict, "at": TIME.out(verdict["at"])})

TASK = (
    both("id"),
    sent("key", "key"),
    both("idempotency_key"),
    read("parent_id"),
    read("dag_id"),
    both("type"),
    both("title"),
    both("spec"),
    both("estimated_cost_usd", "estimated_cost"),
    both("priority"),
    read("priority_tier", "tier"),
    both("priority_boost_per_minute"),
    both("deadline", "deadline", TIME),
    read("effective_priority"),
    read("priority_parts"),
    read("age_minutes"),
    both("dependencies", "depends_on"),
    read("blocked_by"),
    read("status", "status", Pair(lambda state: STATES[State(state)])),
    read("claim.agent_id", "claim.agent_id"),
    read("claim.claimed_at", "claim.claimed_at", TIME),
    read("claim.heartbeat_at", "claim.heartbeat_at", TIME),
    read("claim.heartbeat_interval_sec", "claim.heartbeat_interval_sec"),
    read("progress"),
    read("attempts"),
    both("max_attempts"),
    both("retry.strategy"),
    both("retry.initial_delay_sec"),
    both("retry.backoff_multiplier"),
    both("retry.max_delay_sec"),
    both("retry.jitter"),
    both("retry.retry_on"),
    both("retry.no_retry_on"),
    read("available_at", "retry_at", TIME),
    made("failure_reason", _failure),
    read("failure_history", "failure_history", FAILURES),
    read("poison_pill"),
    both("output.type"),
    both("output.validation")._replace(make=_validation),
    both("output.validation_schema"),
    made("output.data", _data),
    made("output.artifacts", _artifacts),
    read("result.verdict", "output.verdict", VERDICT),
    read("created_at", "created_at", TIME),
    both("created_by"),
    read("started_at", "started_at", TIME),
    read("completed_at", "completed_at", TIME),
    read("dead_lettered_at", "dead_lettered_at", TIME),
    read("cost_usd"),
    read("tokens_used.input"),
    read("tokens_used.output"),
    both("tags"),
)

RESULT = (
    read("task_id"),
    both("status", "status", words({"success": "COMPLETED", "failed": "FAILED"})._replace(out=same)),
    both("data")._replace(make=output_of),
    both("artifacts"),
    sent("data", "output.data"),
    sent("artifacts", "output.artifacts"),
    sent("usage.cost_usd", "cost_usd"),
    sent("usage.tokens_in", "tokens_used.input"),
    sent("usage.tokens_out", "tokens_used.output"),
    both("error"),
    read("execution_time_sec", "duration_sec"),
    read("worker_id", "agent"),
    read("completed_at", "completed_at", TIME),
)

DEAD_LETTER = (
    read("task_id"),
    read("dag_id"),
    read("retry_count", "attempts"),
    read("reason", "failure_reason"),
    read("failure_history", "failure_history", FAILURES),
    read("total_cost_usd"),
    read("dead_lettered_at", "dead_lettered_at", TIME),
    read("reviewed"),
    read("resolution"),
    read("poison_pill"),
)

AGENT = (
    both("id"),
    both("type"),
    both("capabilities"),
    both("models_available"),
    both("max_concurrent_tasks"),
    read("current_tasks"),
    both("budget_remaining_usd"),
    read("status", "status", Pair(lambda status: "offline" if status == "failed" else status)),
    read("last_heartbeat", "last_heartbeat", TIME),
    both("poll_interval_sec"),
    both("claim_ttl_sec"),
)

VIEW = View(name="factory", states=STATES, task=TASK, result=RESULT, dead_letter=DEAD_LETTER, agent=AGENT)
