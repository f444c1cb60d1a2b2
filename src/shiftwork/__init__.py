"""Shiftwork: a durable task queue for fleets of AI agents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue, Client, SyncClient, open_queue
    from shiftwork.core.errors import ShiftworkError
    from shiftwork.core.task import Dag, NewDag, NewTask, Result, Submitted, Task, Usage, Wait
    from shiftwork.queue.agents import Agent, NewAgent
    from shiftwork.queue.claim import Assignment
    from shiftwork.queue.content.artifacts import Artifact
    from shiftwork.queue.face.working import Problem, Report
    from shiftwork.queue.queue import Queue
    from shiftwork.worker import Context, Done, Fail, Release, WaitExpired, Worker

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("AnyQueue", "Client", "SyncClient", "open_queue"), "client"),
    "ShiftworkError": "core.errors",
    **dict.fromkeys(("Dag", "NewDag", "NewTask", "Result", "Submitted", "Task", "Usage", "Wait"), "core.task"),
    **dict.fromkeys(("Agent", "NewAgent"), "queue.agents"),
    "Artifact": "queue.content.artifacts",
    "Assignment": "queue.claim",
    "Queue": "queue.queue",
    **dict.fromkeys(("Problem", "Report"), "queue.face.working"),
    **dict.fromkeys(("Context", "Done", "Fail", "Release", "WaitExpired", "Worker"), "worker"),
}

__all__ = [
    "Agent",
    "AnyQueue",
    "Artifact",
    "Assignment",
    "Client",
    "Context",
    "Dag",
    "Done",
    "Fail",
    "NewAgent",
    "NewDag",
    "NewTask",
    "Problem",
    "Queue",
    "Release",
    "Report",
    "Result",
    "ShiftworkError",
    "Submitted",
    "SyncClient",
    "Task",
    "Usage",
    "Wait",
    "WaitExpired",
    "Worker",
    "open_queue",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: agents call the command line in loops, and most calls need little."""
    if name not in _HOME:
        raise AttributeError(f"module 'shiftwork' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shiftwork.{_HOME[name]}"), name)
