"""The cost of failures: how soon a killed worker's task is claimed again, and how many flaky tasks complete."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.fleet import finished, fleet
from bench.report import Bench, measurement, requirement
from bench.throughput import load
from shiftwork import Queue


@measurement
@requirement("C-260")
async def crash(bench: Bench) -> None:
    """Measure the time from kill -9 of a worker process until a waiting worker claims its task."""
    waits = []
    for _ in range(bench.size(5, 1)):
        # The row belongs to this profile, where lost work is ready again without a delay.
        async with (
            bench.place.url() as url,
            await Queue.open(url, profile="coscientist") as queue,
            fleet(queue, 2, 1) as members,
        ):
            task = await queue.submit(type="hang")
            owner = None
            while owner is None:
                owner = (await queue.get(task.id)).claim.runtime_id
                await asyncio.sleep(0.02)
            victim = next(member for member in members if member.runtime_id == owner)
            killed = queue.now()
            victim.kill()
            waits.append(await _claimed_again(queue, task.id, owner) - killed)
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
    """Measure how many of 10,000 tasks complete if each attempt fails with a probability of 5 %.

    The row sets no conditions. Ours are five attempts and no poison rule; the co-scientist's profile has no such rule
    either, but allows three attempts. With five attempts, 0.05 ** 5 of the tasks become dead letters by chance, one in
    three million, so any other missing task was lost by the queue. With three attempts it is one in 8,000, so chance
    alone would decide about one in 10,000; that run is only shown.
    """
    share, note = await _completed(bench, {"max_attempts": 5, "poison": None})
    bench.figure("5 % of attempts fail: completed, 5 attempts", [share], "%", note)
    bench.check("C-265", "completed, 5 % of attempts fail, 5 attempts", share, 99.99, "%", at_least=True)
    share, note = await _completed(bench, {})
    bench.figure("5 % of attempts fail: completed, default settings", [share], "%", note)


async def _completed(bench: Bench, settings: dict[str, Any]) -> tuple[float, str]:
    """Return the share of tasks completed, and the outcome of the rest. Only the delays are shortened."""
    count = bench.size(10_000, 1_000)
    short = {"retry.initial_delay_sec": 0.2, "maintenance.retry_promoter_sec": 0.25}
    async with bench.place.url() as url, await Queue.open(url) as queue:
        for key, value in (short | settings).items():
            await queue.settings.set(key, value)
        await load(queue, count, {"type": "flaky"})
        async with fleet(queue, 2, 100):
            await finished(queue, count)
        counts = (await queue.status()).counts
        letters = await queue.dead_letters.list(limit=1000)
        failed = await bench.place.sql(url, "select count(*) from attempts where outcome = 'failed'")
    poison = sum(letter.poison_pill for letter in letters)
    lost = count - sum(counts.values())
    note = (
        f"of {count:,}: {failed[0][0]} attempts failed, {len(letters)} dead letters ({poison} as poison), {lost} lost"
    )
    return 100 * counts.get("completed", 0) / count, note
