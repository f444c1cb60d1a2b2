"""Every kind of alert with its severity and message, and the log lines.

Texts from the documents are used unchanged.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shiftwork.model import reasons

Severity = Literal["info", "warning", "critical"]


class Kind(NamedTuple):
    """One kind of alert; `text` is filled with the facts of the case."""

    severity: Severity
    text: str
    meaning: str


KINDS: dict[str, Kind] = {
    "dead_lettered": Kind(
        "warning", "Task {task} moved to dead letter queue", "a task is not retried; a person must decide"
    ),
    "poison_pill": Kind(
        "critical", "Task {task} is a poison pill: it failed with several agents", "the task is bad, not its agents"
    ),
    "delivery_unknown": Kind(
        "critical",
        "Task {task} was started once, and its outcome is unknown",
        "an at-most-once task went silent; check whether it took effect",
    ),
    "effect_unknown": Kind(
        "critical",
        "Task {task} began the effect {key}; whether it happened is unknown",
        "an attempt ended during an outside action; check it and resolve the effect",
    ),
    "question_asked": Kind(
        "warning",
        "Task {task} asks a person: {question}",
        "an agent asked a question, and its task waits for the answer",
    ),
    "approval_wanted": Kind(
        "warning",
        "Task {task} waits for a person's approval",
        "a guard stopped a task; a person approves or rejects it",
    ),
    "breaker_open": Kind(
        "critical", "Circuit breaker OPEN for {type}", "a type of task keeps failing; the breaker stopped it"
    ),
    "displaced": Kind("warning", "Task {task} was displaced", "a task had to make room for more urgent work"),
    "agent_failed": Kind("critical", "Agent {agent} failed", "an agent was marked failed"),
    "agent_silent": Kind(
        "warning", "Agent {agent} went silent with {count} tasks", "an agent went silent and lost its tasks"
    ),
    "runtime_gone": Kind(
        "warning", "Runtime {runtime} is gone with {count} tasks", "a process died and its tasks were reclaimed"
    ),
    "missing_dependency": Kind(
        "warning",
        "Task {task} is blocked: {missing} does not exist",
        "a dependency was never submitted and the wait timed out",
    ),
    "dependency_wait": Kind(
        "warning",
        "Task {task} is blocked: its dependencies take too long",
        "a task waits too long for its dependencies",
    ),
    "dependency_slow": Kind(
        "warning",
        "Task {task} still waits for {dependencies}",
        "a dependency takes longer than `dependency_wait_sec`; the task continues once it completes",
    ),
    "deadline_passed": Kind(
        "warning", "Task {task} has passed its deadline and is {status}", "a task did not end before its deadline"
    ),
    "dependency_failed": Kind(
        "warning",
        "Task {task} failed; {count} tasks of {creator} depend on it",
        "sent to each creator whose tasks depend on a task that failed for good",
    ),
    "capacity_warning": Kind(
        "warning", "Capacity: {waiting} of {limit} tasks wait ({subject})", "the queue or a level of it is nearly full"
    ),
    "capacity_critical": Kind(
        "critical",
        "Capacity: {waiting} of {limit} tasks wait ({subject})",
        "the queue or a level of it is full, or is about to be",
    ),
    "queue_depth": Kind("warning", "More than {limit} tasks wait", "the queue is deeper than `alerts.queue_depth`"),
    "pool_below_minimum": Kind(
        "critical", "{live} agents are live, at least {minimum} are required", "there are fewer than `min_agents`"
    ),
    "failure_rate": Kind(
        "warning", "{failed} of {ended} attempts of type {subject} failed", "too many attempts of a type fail"
    ),
    "task_stuck": Kind(
        "warning",
        "Task {task} has been executed by {agent} for {seconds} s",
        "a task may be stuck; its agent still sends heartbeats",
    ),
    "backlog_age": Kind(
        "warning",
        "Task {task} is next in line and has not been claimed for {seconds} s",
        "work is not claimed, or too slowly",
    ),
    "starved": Kind(
        "warning",
        "Task {task} has waited for {seconds} s and goes to the top",
        "a task waited longer than `starvation_threshold_sec`: more work arrives than is done",
    ),
    "dead_rows": Kind(
        "warning",
        "PostgreSQL holds {dead} dead rows for {live} tasks",
        "vacuum does not keep up, so every claim reads more rows than necessary",
    ),
    "old_transaction": Kind(
        "warning",
        "{what} has kept dead rows from being removed for {how_long}",
        "a long transaction blocks PostgreSQL's vacuum",
    ),
    "maintenance_late": Kind(
        "critical",
        "Maintenance job {subject} is {seconds} s late",
        "a maintenance job fails or takes too long; see the log",
    ),
    "friction": Kind(
        "warning",
        "Type {type} keeps failing in the same way: {signature}",
        "tasks of a type fail again and again in the same way",
    ),
    "budget": Kind(
        "warning",
        "{of} has spent {percent} % of its budget",
        "80, 95 or 100 % of the budget of an agent, a day, a DAG or a task with its subtasks is spent",
    ),
    "sink_failing": Kind(
        "warning",
        "Sink {subject} does not accept notifications: {error}",
        "a notification was abandoned; later ones are kept and retried",
    ),
    "snapshot_failed": Kind(
        "critical", "Snapshot failed: {error}", "the queue works, but the snapshots are getting old"
    ),
    "escalated": Kind("critical", "Task {task} was escalated by {actor}", "a reviewer escalated the decision"),
}

MEANING: dict[str, str] = {name: kind.meaning for name, kind in KINDS.items()}

# Log lines for events worth noticing but not worth an alert.
RETRIED = "Task %s retry %d, backoff %gs"
RATE_LIMITED = "Rate limit hit for %s, waiting %gs"
DUPLICATE = "Duplicate task detected: %s"


def words(kind: str, facts: dict[str, Any]) -> str:
    """The alert's message."""
    return KINDS[kind].text.format_map(facts)


def of_letter(reason: str, *, poison: bool) -> list[str]:
    """The kinds of alert that a new dead letter raises."""
    kinds = ["dead_lettered"]
    if poison:
        kinds.append("poison_pill")
    if reason in {reasons.DELIVERY_UNKNOWN, reasons.DISPLACED}:
        kinds.append(reason)
    return kinds
