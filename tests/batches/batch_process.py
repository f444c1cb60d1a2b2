"""A process that runs the batch job and dies at a named point."""

import asyncio
import json
import os

from shiftwork import Queue
from shiftwork.store import crash_points
from shiftwork.testing import MovedClock
from tests.batches.steps import turn


def run_job(url: str, environment: dict[str, str], now: float, deadly: str | None) -> None:
    """One run of the job, and another a minute later, at this time; prints the points that were passed."""
    os.environ.update(environment)
    passed = crash_points.arm(deadly)
    asyncio.run(_run(url, now))
    print(json.dumps([point for point in passed if point.startswith("batches: ")]), flush=True)  # noqa: T201 -- for the test that reads it


async def _run(url: str, now: float) -> None:
    clock = MovedClock(now)
    async with Queue.open(url, clock=clock) as queue:
        await turn(queue)
        await turn(queue, clock, 60)
