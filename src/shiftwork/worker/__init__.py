"""Workers: run handlers by type, with heartbeats, cancellation and a durable outbox."""

from shiftwork.worker.context import Context, Done, Fail, Release, Subtask, SubtasksFailed, WaitExpired
from shiftwork.worker.durable import Happened, NotHappened
from shiftwork.worker.lifespan import Lifespan
from shiftwork.worker.worker import Worker

__all__ = [
    "Context",
    "Done",
    "Fail",
    "Happened",
    "Lifespan",
    "NotHappened",
    "Release",
    "Subtask",
    "SubtasksFailed",
    "WaitExpired",
    "Worker",
]
