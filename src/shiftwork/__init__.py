"""Shiftwork: a durable task queue for fleets of AI agents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiftwork.agents.model import Agent, NewAgent
    from shiftwork.artifacts.model import Artifact
    from shiftwork.client import AnyQueue, Client, open_queue
    from shiftwork.client.blocking import SyncQueue
    from shiftwork.engine.assignment import Assignment, ClaimResult
    from shiftwork.model.errors import ResultTimeout, ShiftworkError, TaskCancelled, TaskFailed
    from shiftwork.model.reports import Completion, Failure, Heartbeat
    from shiftwork.model.task import Dag, NewDag, NewTask, Result, Submitted, Task, Usage, Wait
    from shiftwork.operation.handle import DagHandle, TaskHandle
    from shiftwork.queue import Queue
    from shiftwork.task_types.typed_task import TypedTask
    from shiftwork.worker import Context, Done, Fail, Lifespan, Release, SubtasksFailed, WaitExpired, Worker

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("AnyQueue", "Client", "open_queue"), "client"),
    "SyncQueue": "client.blocking",
    **dict.fromkeys(("ResultTimeout", "ShiftworkError", "TaskCancelled", "TaskFailed"), "model.errors"),
    **dict.fromkeys(("DagHandle", "TaskHandle"), "operation.handle"),
    **dict.fromkeys(("Dag", "NewDag", "NewTask", "Result", "Submitted", "Task", "Usage", "Wait"), "model.task"),
    **dict.fromkeys(("Agent", "NewAgent"), "agents.model"),
    "Artifact": "artifacts.model",
    **dict.fromkeys(("Assignment", "ClaimResult"), "engine.assignment"),
    "Queue": "queue",
    **dict.fromkeys(("Completion", "Failure", "Heartbeat"), "model.reports"),
    "TypedTask": "task_types.typed_task",
    **dict.fromkeys(
        ("Context", "Done", "Fail", "Lifespan", "Release", "SubtasksFailed", "WaitExpired", "Worker"), "worker"
    ),
}

__all__ = [
    "Agent",
    "AnyQueue",
    "Artifact",
    "Assignment",
    "ClaimResult",
    "Client",
    "Completion",
    "Context",
    "Dag",
    "DagHandle",
    "Done",
    "Fail",
    "Failure",
    "Heartbeat",
    "Lifespan",
    "NewAgent",
    "NewDag",
    "NewTask",
    "Queue",
    "Release",
    "Result",
    "ResultTimeout",
    "ShiftworkError",
    "Submitted",
    "SubtasksFailed",
    "SyncQueue",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TypedTask",
    "Usage",
    "Wait",
    "WaitExpired",
    "Worker",
    "open_queue",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use: agents call the command line in loops, and most calls need few of them."""
    if name not in _HOME:
        raise AttributeError(f"module 'shiftwork' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shiftwork.{_HOME[name]}"), name)
