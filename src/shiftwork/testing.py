"""Helpers for tests of programs that use the queue. They move the clock instead of waiting."""

from __future__ import annotations

from shiftwork.maintenance.loop import run_work
from shiftwork.model import times
from shiftwork.model.task import Task
from shiftwork.model.times import Duration
from shiftwork.queue import Queue
from shiftwork.worker.delivery import COUNTS, Summary
from shiftwork.worker.worker import Worker


class MovedClock:
    """A clock that moves only on request."""

    def __init__(self, start: float = 1_765_800_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: Duration) -> None:
        self._now += times.seconds(seconds)


async def pass_time(queue: Queue, clock: MovedClock, seconds: Duration) -> dict[str, dict[str, int]]:
    """Move the clock and run the maintenance jobs that have work or are due; return their counts."""
    clock.advance(seconds)
    return await run_work(queue.engine)


async def run_until_idle(worker: Worker, queue: Queue, *, clock: MovedClock | None = None) -> Summary:
    """Run a worker on an open queue until it is idle. With the queue's `clock`, retries need no waiting.

    Moves the clock to the next retry or timer and runs the maintenance jobs, until none is left.
    """
    total = Summary()
    while True:
        done = await worker.run(queue, until_idle=True)
        for field in (*COUNTS, "cost_usd", "took_sec"):
            setattr(total, field, getattr(total, field) + getattr(done, field))
        due = [task.available_at for task in (await queue.tasks.list(status="retrying", limit=1000)).tasks]
        due += [wait.until for task in await _parked(queue) for wait in task.waits if wait.kind == "time"]
        times = [at for at in due if at is not None]
        if clock is None or not times:
            return total
        await pass_time(queue, clock, max(0.0, min(times) - clock()))


async def _parked(queue: Queue) -> list[Task]:
    return (await queue.tasks.list(status="pending", limit=1000)).tasks
