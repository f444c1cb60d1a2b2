"""Workers: handlers by type, run with heartbeats, cancellation and a durable outbox that no handler has to think of."""

from shiftwork.worker.context import Child, Context, Fail, GiveBack
from shiftwork.worker.worker import Worker

__all__ = ["Child", "Context", "Fail", "GiveBack", "Worker"]
