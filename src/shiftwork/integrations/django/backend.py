"""The backend to name in `TASKS`: it enqueues Django tasks as tasks of the queue, and reads their results."""

from __future__ import annotations

import atexit
import os
import threading
import time
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from shiftwork import config
from shiftwork.client.blocking import SyncQueue
from shiftwork.integrations.django import django_results
from shiftwork.integrations.django.framework import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from shiftwork.model.errors import ConnectionUnusable, NotFound
from shiftwork.model.ids import IdMaker, show_task

OPTIONS = {"store", "workspace", "database"}
_IDS = IdMaker()
_queues: dict[tuple[int, str, str], SyncQueue] = {}
_opening = threading.Lock()


def open_once(address: str, workspace: str) -> SyncQueue:
    """The queue of this process. Django creates a backend per thread, and a fork needs a queue of its own."""
    key = os.getpid(), address, workspace
    with _opening:
        if key not in _queues:
            _queues[key] = SyncQueue.open(address, workspace=workspace)
            atexit.register(_queues[key].close)
        return _queues[key]


class ShiftworkBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """Options: `store`, the queue's address; `workspace`; `database`, whose transactions submissions join."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := sorted(self.options.keys() - OPTIONS):
            known = ", ".join(sorted(OPTIONS))
            raise ImproperlyConfigured(f"TASKS[{alias!r}] has an unknown option {unknown[0]!r}; known are {known}")
        self.address: str = self.options.get("store") or config.address().store.value or config.DEFAULT_STORE
        self.workspace: str = self.options.get("workspace", "default")
        self.database: str = self.options.get("database", "default")

    @property
    def queue(self) -> SyncQueue:
        return open_once(self.address, self.workspace)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Submit the task: in the open transaction if there is one, otherwise immediately."""
        self.validate_task(task)
        new: dict[str, Any] = {
            "type": django_results.type_of(task.queue_name),
            "title": task.module_path,
            "priority": django_results.priority_of(task.priority),
            "payload": {
                "task": task.module_path,
                "priority": task.priority,
                "args": normalize_json(args),
                "kwargs": normalize_json(kwargs),
            },
        }
        if task.run_after is not None:
            moment = timezone.make_aware(task.run_after) if timezone.is_naive(task.run_after) else task.run_after
            new["run_at"] = moment
        result: TaskResult = TaskResult(
            task=task,
            id=self._submit(new),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def _submit(self, new: dict[str, Any]) -> str:
        """Submit the task and return its id; inside a transaction on a database that is not the queue's, on commit."""
        database = connections[self.database]
        if not database.in_atomic_block:
            return self.queue.submit(new).id
        try:
            return self.queue.submit(new, connection=database.connection).id
        except ConnectionUnusable as error:
            if error.facts.get("joinable", True):
                raise
        new["id"] = show_task(_IDS.make(time.time()))
        transaction.on_commit(partial(self.queue.submit, new), using=self.database)
        return str(new["id"])

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task, whichever process enqueued it."""
        try:
            task = self.queue.get(result_id)
        except NotFound as error:
            raise TaskResultDoesNotExist(result_id) from error
        if "task" not in task.payload or not task.type.startswith(django_results.PREFIX):
            raise TaskResultDoesNotExist(result_id)
        return django_results.result_of(task, self.queue.tasks.attempts(task.id), self.alias)
