"""Converts tasks to file entries and detects what a script changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from shiftwork.compat.external.loki_folder import KEPT, SCRIPT_AGENT, Entry, claimer
from shiftwork.compat.views.loki import VIEW
from shiftwork.model import ids
from shiftwork.model.states import CLAIMED_STATES
from shiftwork.model.task import Task


class ScriptAction(StrEnum):
    """An action that a script takes on a task by writing files."""

    CLAIM = "claimed"
    COMPLETE = "completed"
    FAIL = "failed"
    BURY = "dead-lettered"
    CANCEL = "cancelled"
    RETRY = "retried"


def queue_of(task: Task) -> str:
    """The file that a task belongs in."""
    return VIEW.status_out(task.status)


def name_of(task: Task) -> str:
    return task.external_id or ids.parse(task.id) or task.id


def entry_of(task: Task, *, kept: bool) -> Entry:
    """A task as a file entry. `status` and `fence` record the version that a script saw before it changed the entry."""
    shown = {**VIEW.task_out(msgspec.to_builtins(task)), "fence": task.fence}
    if queue_of(task) == "pending":
        shown["claimedBy"] = KEPT if kept else None
    return shown


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether the queue wrote the entry: if so, an unknown task was deleted and is not new."""
    return "fence" in entry


def script_action(queue: str, entry: Mapping[str, Any], task: Task) -> ScriptAction | None:
    """The action of a script whose entry is in this file; None if it did nothing, or acted on an older attempt."""
    ours = queue_of(task)
    if not _is_of_this_attempt(entry, task):
        return None
    if queue == "pending":
        return _in_pending(entry, task, ours)
    if ours not in {"pending", "in-progress"} or queue == ours:
        return None
    if queue == "in-progress":
        return ScriptAction.CLAIM
    if queue == "completed":
        return ScriptAction.FAIL if _result(entry).get("status") == "failed" else ScriptAction.COMPLETE
    return ScriptAction.BURY if queue == "dead-letter" else ScriptAction.CANCEL


def _in_pending(entry: Mapping[str, Any], task: Task, ours: str) -> ScriptAction | None:
    """A script claims in place, returns a failed task with more retries, and revives a dead letter with fewer."""
    more = _retries(entry, task) - task.attempts
    if ours == "dead-letter":
        return ScriptAction.RETRY if more < 0 else None
    if more > 0:
        return ScriptAction.FAIL
    return ScriptAction.CLAIM if ours == "pending" and claimer(entry) is not None else None


def has_lost(queue: str, entry: Mapping[str, Any], task: Task) -> str | None:
    """The agent of a script that claimed too late, after the task had left the ready state."""
    agent = claimer(entry)
    if agent is None or queue not in {"pending", "in-progress"} or entry.get("status", "pending") != "pending":
        return None
    if _is_of_this_attempt(entry, task) and queue_of(task) in {"pending", "in-progress"}:
        return None
    last = task.result.worker_id if task.result else None
    knew = {task.claim.agent_id, last, *(failed.agent for failed in task.failure_history)}
    return None if agent in knew else agent


def _is_of_this_attempt(entry: Mapping[str, Any], task: Task) -> bool:
    """Whether the entry is from the task's current state, or from just before the script's own claim.

    A script moves a task but leaves its `status`, which records where the queue had it.
    """
    fence, ours = entry.get("fence", 0), queue_of(task)
    was = entry.get("status", ours)
    if fence == task.fence:
        return bool(was == ours)
    begun = fence == task.fence - 1 and was == "pending" and task.status in CLAIMED_STATES
    return begun and task.claim.agent_id == (claimer(entry) or SCRIPT_AGENT)


def _retries(entry: Mapping[str, Any], task: Task) -> int:
    retries = entry.get("retries")
    return retries if isinstance(retries, int) else task.attempts


def _result(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    result = entry.get("result")
    return result if isinstance(result, Mapping) else {}


def result_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The result that a script wrote, in the queue's fields."""
    found = VIEW.result_in(_result(entry))
    report = found.get("decision_report")
    return {"data": found.get("data"), "decision_report": report if isinstance(report, Mapping) else None}


def error_of(entry: Mapping[str, Any]) -> str | None:
    error = entry.get("lastError")
    return error if error is None or isinstance(error, str) else msgspec.json.encode(error).decode()


def new_task(queue: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to submit an unknown task. A completed task has no open dependencies, so they are dropped."""
    fields = VIEW.record_in(entry)
    if queue == "completed":
        fields.pop("dependencies", None)
    return fields


def first_action(queue: str, entry: Mapping[str, Any], task: Task) -> ScriptAction | None:
    """A script's action before the task was submitted. A task that waits for its retry still names its last claim."""
    if queue == "pending" and entry.get("availableAt") is not None:
        return None
    return script_action(
        queue, {**entry, "status": queue_of(task), "fence": task.fence, "retries": task.attempts}, task
    )
