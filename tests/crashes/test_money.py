"""kill -9 while money is granted, booked and released: budgets are consistent after each kill, and no grant leaks."""

import asyncio
import random
import sys
import time
from asyncio.subprocess import PIPE

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.crashes.test_kill import start_worker, until_alone
from tests.money import check_books, check_ceilings, granted

KILLS = 6


async def spend_until_killed(url: str, lines: int) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.crashes.spender", url, stdout=PIPE)
    assert process.stdout is not None
    for _ in range(lines):
        assert await process.stdout.readline()
    process.kill()
    await process.wait()


async def test_budgets_are_consistent_after_every_kill(store_url: str) -> None:
    chance = random.Random(7)
    async with Queue.open(store_url) as queue:
        await queue.budgets.set("day", None, ceiling_usd=900)
        await queue.settings.set("on_stale", "reclaim")  # its processes die often, and that is not the subject
    for _ in range(KILLS):
        await spend_until_killed(store_url, chance.randrange(1, 30))
        await until_alone(store_url)
        async with Queue.open(store_url) as queue:
            await check_books(queue)
            await check_ceilings(queue)
    async with Queue.open(store_url) as queue:
        await queue.runtimes.report_gone("spender")
        assert await granted(queue) == 0
        await check_books(queue)
        assert (await queue.budgets.costs("agent")).costs[0].cost_usd > 0.02


async def test_grant_of_a_killed_worker_counts_as_spent_until_reported(store_url: str) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        await queue.submit_dag({"tasks": [{"type": "code", "estimated_cost_usd": 0.60}], "budget_ceiling_usd": 1.00})
        worker, token = await start_worker(store_url, "killed", clock)
        worker.kill()
        await worker.wait()
        await pass_time(queue, clock, 95)
        await pass_time(queue, clock, 60)
        (dag,) = await queue.budgets.list("dag")
        assert (dag.spent_usd, dag.granted_usd) == (0.60, 0)
        assert await queue.claim("other") == [], "only 0.40 are left for sure"
        with pytest.raises(Exception, match="no longer holds"):
            await queue.fail(token, "crash", usage={"cost_usd": 0.15})
        assert len(await queue.claim("other")) == 1
        await check_books(queue)
