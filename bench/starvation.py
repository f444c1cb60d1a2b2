"""Starvation: how much old work is claimed under a flood of urgent work, and whether each task at its predicted age."""

from __future__ import annotations

import time

from bench.report import Bench, measurement
from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.conformance.soak import gets_out_at, soak

URGENT, BACKGROUND = 5, 90


@measurement
async def starvation(bench: Bench) -> None:
    """Simulate hours with a moved clock. Fail if a task is claimed in another minute than the formula predicts."""
    minutes, rate = bench.size(600, 12), bench.size(1, 10)
    clock = MovedClock()
    async with bench.place.url() as url, await Queue.open(url, clock=clock) as queue:
        began = time.perf_counter()
        handed = await soak(queue, clock, minutes, (URGENT, BACKGROUND), priority_boost_per_minute=rate)
        seconds = time.perf_counter() - began
    old = {each.came: each.went for each in handed if not each.urgent}
    due = {came: gets_out_at(came, BACKGROUND - URGENT, rate) for came in range(minutes)}
    if old != {came: went for came, went in due.items() if went < minutes}:
        raise AssertionError(f"old tasks were claimed at {old}, not when the formula says")
    bench.figure(f"old tasks out of {10 * minutes:,} in {minutes} minutes of flood", [len(old)], "tasks")
    bench.figure("the same, handed out and completed", [len(handed) / seconds], "tasks/s")
