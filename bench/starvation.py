"""Old work under a flood of urgent work: how many get out, and whether each does in the minute that its age says."""

from __future__ import annotations

import time

from bench.report import Bench, measurement
from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conformance.soak import gets_out_at, soak

URGENT, BACKGROUND = 5, 90


@measurement
async def starvation(bench: Bench) -> None:
    """Hours in a moved clock. A task that gets out at another minute than its formula says fails the measurement."""
    minutes, rate = bench.size(600, 12), bench.size(1, 10)
    clock = MovedClock()
    async with bench.place.url() as url, await Queue.open(url, clock=clock) as queue:
        began = time.perf_counter()
        handed = await soak(queue, clock, minutes, (URGENT, BACKGROUND), priority_boost_per_minute=rate)
        seconds = time.perf_counter() - began
    old = {each.came: each.went for each in handed if not each.urgent}
    due = {came: gets_out_at(came, BACKGROUND - URGENT, rate) for came in range(minutes)}
    if old != {came: went for came, went in due.items() if went < minutes}:
        raise AssertionError(f"old tasks left at {old}, and not when their age says")
    bench.figure(f"old tasks out of {10 * minutes:,} in {minutes} minutes of flood", [len(old)], "tasks")
    bench.figure("the same, handed out and completed", [len(handed) / seconds], "tasks/s")
