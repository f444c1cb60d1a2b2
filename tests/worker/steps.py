"""Common steps of tests of workers: wait for a condition, run a worker, let its handlers continue."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from shiftwork import Client, Queue
from shiftwork.worker import Worker
from shiftwork.worker.delivery import Summary

PATIENCE_SEC = 60.0
"""Far more than anything here takes; a fact that has not come by then does not come."""


async def until(fact: Callable[[], Awaitable[bool] | bool]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + PATIENCE_SEC
    while True:
        seen = fact()
        if await seen if inspect.isawaitable(seen) else seen:
            return
        assert time.monotonic() < deadline, f"this did not come about: {inspect.getsource(fact).strip()}"
        await asyncio.sleep(0.02)


async def until_status(queue: Queue, task_id: str, status: str) -> None:
    async def there() -> bool:
        return (await queue.get(task_id)).status == status

    await until(there)


@asynccontextmanager
async def at_work(worker: Worker, url: str) -> AsyncIterator[asyncio.Task[Summary]]:
    """Run a worker in the background and stop it gracefully at the end."""
    running = asyncio.create_task(worker.run(url))
    try:
        yield running
    finally:
        worker.stop()
        await running


async def knows(queue: Queue | Client, agent_id: str) -> bool:
    return agent_id in [agent.id for agent in await queue.agents.list()]


async def verbs(queue: Queue, task_id: str) -> list[str]:
    """Return the verbs of a task's events."""
    return [event.verb for event in (await queue.tasks.history(task_id)).events]


async def beat_fast(queue: Queue, lease_sec: float) -> None:
    """Set short leases."""
    await queue.settings.set("heartbeat_interval_sec", lease_sec / 4)
    await queue.settings.set("heartbeat_timeout_sec", lease_sec)
