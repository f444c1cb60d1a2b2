"""Workers: handlers by type, run with heartbeats, cancellation and a durable outbox that no handler has to think of."""

from shiftwork.worker.context import Child, Context, Done, Fail, GiveBack, WaitExpired
from shiftwork.worker.durable import Happened, NotHappened
from shiftwork.worker.worker import Worker

__all__ = ["Child", "Context", "Done", "Fail", "GiveBack", "Happened", "NotHappened", "WaitExpired", "Worker"]
