"""What somebody should look at: every kind of alert with its severity and its words, and the lines of the log.

Texts that the documents give are used as they stand.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shiftwork.core import reasons

Severity = Literal["info", "warning", "critical"]


class Kind(NamedTuple):
    """One kind of alert; `text` is filled with the facts of the case."""

    severity: Severity
    text: str
    meaning: str


KINDS: dict[str, Kind] = {
    "dead_lettered": Kind(
        "warning", "Task {task} moved to dead letter queue", "a task is not tried again; a person must decide"
    ),
    "poison_pill": Kind(
        "critical", "Task {task} is a poison pill: it failed with several agents", "the task is bad, not its agents"
    ),
    "delivery_unknown": Kind(
        "critical",
        "Task {task} was started once and its end is not known",
        "a task that may not be started twice went silent; somebody must look whether it has had its effect",
    ),
    "displaced": Kind("warning", "Task {task} was displaced", "a task had to make room for more urgent work"),
    "agent_failed": Kind("critical", "Agent {agent} failed", "an agent was marked failed"),
    "agent_silent": Kind(
        "warning", "Agent {agent} went silent with {count} tasks", "an agent stopped talking and lost what it held"
    ),
    "runtime_gone": Kind(
        "warning", "Runtime {runtime} is gone with {count} tasks", "a process died and what it held went back"
    ),
    "missing_dependency": Kind(
        "warning",
        "Task {task} is blocked: {missing} does not exist",
        "a dependency that nobody submitted was waited for too long",
    ),
    "dependency_wait": Kind(
        "warning", "Task {task} is blocked: its dependencies take too long", "dependencies were waited for too long"
    ),
    "dependency_failed": Kind(
        "warning",
        "Task {task} failed; {count} tasks of {creator} depend on it",
        "told to each creator of tasks that wait for a task that failed for good",
    ),
    "escalated": Kind("critical", "Task {task} was escalated by {actor}", "a reviewer wants somebody else to decide"),
}

MEANING: dict[str, str] = {name: kind.meaning for name, kind in KINDS.items()}

# Lines of the log, for what is worth a look but nobody's duty.
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
