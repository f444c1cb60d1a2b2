"""Converts tasks of the queue to Django's tasks and results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from shiftwork.integrations.django.framework import Task, TaskError, TaskResult, TaskResultStatus
from shiftwork.model.history import Attempt
from shiftwork.model.task import Task as QueuedTask

PREFIX = "django."
_STATUS = {
    "completed": TaskResultStatus.SUCCESSFUL,
    **dict.fromkeys(("failed", "dead_lettered", "cancelled"), TaskResultStatus.FAILED),
    **dict.fromkeys(("claimed", "running", "validating"), TaskResultStatus.RUNNING),
}
"""All other states are READY: the task has yet to run, or to run again."""


def type_of(queue_name: str) -> str:
    """The type of all tasks of a Django queue, which selects workers, limits and settings."""
    return PREFIX + queue_name


def priority_of(priority: int) -> float:
    """Convert Django's priority, from -100 (least urgent) to 100, to ours, from 100 to 0."""
    return 50 - priority / 2


def task_of(queued: QueuedTask, backend: str) -> Task:
    """Return the Django task as it was enqueued."""
    found: Task = import_string(queued.payload["task"])
    return found.using(
        priority=queued.payload["priority"], queue_name=queued.type.removeprefix(PREFIX), backend=backend
    )


def result_of(queued: QueuedTask, attempts: Sequence[Attempt], backend: str) -> TaskResult:
    holder = queued.claim.agent_id
    last = queued.claimed_at if holder is not None else max((each.claimed_at for each in attempts), default=None)
    result: TaskResult = TaskResult(
        task=task_of(queued, backend),
        id=queued.id,
        status=_STATUS.get(queued.status, TaskResultStatus.READY),
        enqueued_at=moment(queued.created_at),
        started_at=moment(min((each.claimed_at for each in attempts), default=queued.claimed_at)),
        last_attempted_at=moment(last),
        finished_at=moment(queued.finished_at or queued.dead_lettered_at or queued.failed_at)
        if queued.status in _STATUS and holder is None
        else None,
        args=queued.payload["args"],
        kwargs=queued.payload["kwargs"],
        backend=backend,
        errors=[_error(each.error) for each in attempts if each.error],
        worker_ids=[each.agent_id for each in attempts] + ([] if holder is None else [holder]),
    )
    if queued.status == "completed" and queued.result is not None and isinstance(queued.result.data, dict):
        set_field(result, "_return_value", queued.result.data.get("return_value"))
    return result


def set_field(result: TaskResult, name: str, value: Any) -> None:
    """Set a field of a frozen result, as backends are allowed to."""
    object.__setattr__(result, name, value)


def _error(text: str) -> TaskError:
    """Parse an error that the worker wrote; errors of the queue itself have no exception class."""
    path, _, trace = text.partition("\n")
    known = path.replace(".", "").replace("_", "").isalnum() and trace
    return TaskError(
        exception_class_path=path if known else "builtins.RuntimeError", traceback=trace if known else text
    )


def moment(at: float | None) -> datetime | None:
    if at is None:
        return None
    aware = datetime.fromtimestamp(at, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
