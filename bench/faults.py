"""What a failure costs: a killed worker's task until it is claimed again, and tasks that fail now and then."""

from __future__ import annotations

import asyncio

from bench.fleet import finished, fleet
from bench.report import Bench, measurement, requirement
from bench.throughput import load
from shiftwork import Queue


@measurement
@requirement("C-260")
async def crash(bench: Bench) -> None:
    """From kill -9 of a worker process until its task is claimed by another that waits for work."""
    waits = []
    for _ in range(bench.size(5, 1)):
        async with bench.place.url() as url, await Queue.open(url) as queue, fleet(queue, 2, 1) as members:
            task = await queue.submit(type="hang")
            holder = None
            while holder is None:
                holder = (await queue.get(task.id)).claim.runtime_id
                await asyncio.sleep(0.02)
            victim = next(member for member in members if member.runtime_id == holder)
            killed = queue.now()
            victim.kill()
            waits.append(await _claimed_again(queue, task.id, holder) - killed)
    bench.figure("kill -9 of a worker to its task claimed again", [1000 * wait for wait in waits], "ms")
    bench.check("C-260", "kill -9 of a worker to its task claimed again, slowest", max(waits), 1, "s")


async def _claimed_again(queue: Queue, task_id: str, before: str) -> float:
    async with asyncio.timeout(120):
        while True:
            claim = (await queue.get(task_id)).claim
            if claim.runtime_id not in {None, before} and claim.claimed_at is not None:
                return claim.claimed_at
            await asyncio.sleep(0.02)


@measurement
@requirement("C-265")
async def faults(bench: Bench) -> None:
    """10,000 tasks of which every attempt fails with a chance of 5 %: how many are completed in the end."""
    count = bench.size(10_000, 1_000)
    async with bench.place.url() as url, await Queue.open(url) as queue:
        await queue.set_setting("retry.initial_delay_sec", 0.2)
        await queue.set_setting("maintenance.retry_promoter_sec", 0.25)
        await queue.set_setting("max_attempts", 5)
        await load(queue, count, {"type": "flaky"})
        async with fleet(queue, 2, 100):
            await finished(queue, count)
        counts = (await queue.status()).counts
        failed = await bench.place.sql(url, "select count(*) from attempts where outcome = 'failed'")
    share = 100 * counts.get("completed", 0) / count
    bench.figure(f"{count:,} tasks, 5 % of attempts fail: completed", [share], "%", f"{failed[0][0]} attempts failed")
    bench.check("C-265", "tasks completed although 5 % of attempts fail", share, 99.99, "%", at_least=True)
