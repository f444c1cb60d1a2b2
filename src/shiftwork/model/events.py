"""Event names: one stored row per verb and task becomes one or more named events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shiftwork.model.states import State

_ARRIVED: dict[str, str] = {
    State.READY: "task.ready",
    State.WAITING_APPROVAL: "approval.requested",
    State.RUNNING: "task.started",
    State.RETRYING: "task.retrying",
    State.DEAD_LETTERED: "task.dead_lettered",
    State.CANCELLED: "task.cancelled",
}
"""The event of a path that ends in a state, in addition to the verb's own name."""

_NAMES: dict[str, str] = {
    "submitted": "task.created",
    "spawned": "task.created",
    "retried": "task.created",
    "rerun": "task.created",
    "unblocked": "",
    "promoted": "",
    "claimed": "task.claimed",
    "started": "",
    "handed_in": "task.validating",
    "report_missing": "task.incomplete",
    "completed": "task.completed",
    "failed": "task.attempt_failed",
    "released": "task.released",
    "yield_asked": "task.yield_asked",
    "lease_expired": "task.lease_expired",
    "waited": "task.waiting",
    "cancelled": "task.cancelled",
    "expired": "task.expired",
    "displaced": "task.displaced",
    "reviewed": "task.reviewed",
    "updated": "task.updated",
    "blocked": "task.blocked",
    "starved": "task.starved",
    "deadline_passed": "task.deadline_passed",
    "dependency_slow": "task.dependency_slow",
    "progress": "task.progress",
    "message": "task.message",
    "heartbeat": "task.heartbeat",
    "session": "task.session",
    "usage": "task.usage",
    "batched": "task.batched",
    "batch_missed": "task.batch_missed",
    "step": "task.step",
    "effect": "task.effect",
    "merged": "task.merged",
    "published": "task.published",
    "withdrawn": "task.withdrawn",
    "overrun": "budget.overrun",
    "dependency_failed": "task.dependency_failed",
    "attached": "task.artifact",
    "approved": "approval.approved",
    "rejected": "approval.rejected",
    "question_answered": "question.answered",
    "question_expired": "question.expired",
    "instruction_sent": "instruction.sent",
    "instruction_delivered": "instruction.delivered",
    "instruction_acknowledged": "instruction.acknowledged",
}

_OF_THE_QUEUE = (
    *("alert.raised", "alert.acknowledged", "agent.registered", "agent.status", "agent.budget", "agent.silent"),
    *("runtime.gone", "queue.paused", "queue.resumed", "settings.changed", "dag.updated", "token.created"),
    *("token.revoked", "signal.sent"),
    *("capacity.warning", "capacity.critical", "capacity.normal", "pool.below_minimum", "pool.restored"),
    *("condition.began", "condition.over", "artifact.added"),
    *("breaker.opened", "breaker.half_open", "breaker.closed", "queue.slowdown", "cooldown.started", "cooldown.lifted"),
    *("limit.set", "limit.removed", "account.set", "account.removed", "account.used_up"),
    *("sink.added", "sink.updated", "sink.paused", "sink.resumed", "sink.removed", "sink.tested", "sink.redelivered"),
    *("budget.changed", "budget.warned", "budget.closed", "budget.opened"),
    *("trigger.saved", "trigger.paused", "trigger.resumed", "trigger.removed"),
    *("type.saved", "type.removed"),
    *("trigger.fired", "trigger.skipped", "trigger.refused"),
    *("batch.posted", "batch.ended"),
    *("snapshot.taken", "quota.set", "entry.refused", "workspace.moved"),
)
"""Events that concern no single task."""


def names(verb: str, path: str | None, data: dict[str, Any] | None = None) -> list[str]:
    """The dotted names of the events one row stands for, in order."""
    event_names = [_NAMES.get(verb, verb.replace("_", ".", 1))]
    states = path.split(">") if path else []
    if verb == "claimed" and data and data.get("original_consumer"):
        event_names.append("task.reclaimed")
    if states and (arrival := _ARRIVED.get(states[-1])) and arrival not in event_names:
        event_names.append(arrival)
    if verb == "waited" and data and "question" in data:
        event_names.append("question.asked")
    if verb == "failed" and states and states[-1] in {State.DEAD_LETTERED, State.FAILED}:
        event_names.append("task.failed")
    if data and (dag := data.get("dag")):
        event_names.append(f"dag.{dag}")
    if data and data.get("alerts"):
        event_names.append("alert.raised")
    return [name for name in event_names if name]


def chosen(pattern: str, among: Iterable[str]) -> set[str]:
    """The event names that a filter matches: a single name, or all that match a pattern such as `task.*`."""
    if pattern.endswith("*"):
        return {name for name in among if name.startswith(pattern[:-1])}
    return {pattern} & set(among)


def every_name() -> set[str]:
    """All names an event can have, for the documentation and the views."""
    fixed = {name for name in _NAMES.values() if name} | set(_ARRIVED.values()) | set(_OF_THE_QUEUE)
    return fixed | {"task.failed", "task.reclaimed", "question.asked", "dag.completed", "dag.failed", "dag.cancelled"}
