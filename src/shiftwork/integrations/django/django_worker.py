"""The worker that runs Django tasks."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from shiftwork.integrations.django.backend import ShiftworkBackend
from shiftwork.integrations.django.django_results import result_of, set_field, type_of
from shiftwork.integrations.django.framework import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from shiftwork.model import reasons
from shiftwork.worker.context import Context, Fail
from shiftwork.worker.worker import Worker

log = logging.getLogger("shiftwork.worker")


def worker_of(backend: ShiftworkBackend, queues: Sequence[str], concurrency: int | None) -> Worker:
    """Return a worker for these queues of a backend; each task runs in its own thread."""
    worker = Worker(concurrency=concurrency, workspace=backend.workspace)

    def run(context: Context) -> dict[str, Any]:
        close_old_connections()
        try:
            return _run(backend, context)
        finally:
            close_old_connections()

    for name in queues:
        worker.handler(type_of(name))(run)
    return worker


def _run(backend: ShiftworkBackend, context: Context) -> dict[str, Any]:
    queued = context.task
    result = result_of(queued, backend.queue.tasks.attempts(queued.id) if queued.attempts else [], backend.alias)
    set_field(result, "status", TaskResultStatus.RUNNING)
    task_started.send(type(backend), task_result=result)
    given = [TaskContext(task_result=result), *result.args] if result.task.takes_context else result.args
    try:
        answer = normalize_json(result.task.call(*given, **result.kwargs))
    except Exception as error:
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(traceback.format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        _finish(backend, result, TaskResultStatus.FAILED)
        log.exception("%s failed", result.task.module_path)
        raise Fail(reasons.CRASH, f"{path}\n{trace}") from error
    set_field(result, "_return_value", answer)
    _finish(backend, result, TaskResultStatus.SUCCESSFUL)
    return {"return_value": answer}


def _finish(backend: ShiftworkBackend, result: TaskResult, status: TaskResultStatus) -> None:
    set_field(result, "status", status)
    set_field(result, "finished_at", timezone.now())
    task_finished.send(type(backend), task_result=result)
