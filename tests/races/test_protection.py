"""Breakers and limits under concurrent claims: one probe, never over the limit, nothing left behind."""

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.limits.breakers import load
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql
from tests.conftest import DEEP
from tests.races.fleet import Stop, handles, hire, together, until_blocked

HALF_OPEN_SEC = 60


async def state(queue: Queue) -> str:
    (found,) = await queue.breakers.list("code")
    return found.state


@pytest.mark.requirement("L-113", "L-123")
async def test_only_one_of_forty_claimers_gets_the_probe(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 4, clock=clock) as queues:
        await queues[0].submit_many([{"type": "code"}] * 60)
        await queues[0].breakers.trip("code")
        for _ in range(5):
            clock.advance(HALF_OPEN_SEC)
            answers = await together(*(queues[i % 4].claim(f"agent-{i}", start=True) for i in range(40)))
            (tested,) = [assignment for answer in answers for assignment in answer]
            await queues[0].fail(tested.token, "crash", retry=False)
            assert await state(queues[1]) == "open"


async def test_second_claimer_finds_the_probe_taken(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (first, second):
        await first.submit_many([{"type": "code"}] * 4 + [{"type": "docs"}])
        await first.breakers.trip("code")
        clock.advance(HALF_OPEN_SEC)
        stop = Stop(first, "save_breakers")
        early = asyncio.create_task(first.claim("early", types=["code"]))
        await stop.wait()  # it has the breaker's lock, and no one can see that yet
        late = asyncio.create_task(second.claim("late"))
        await until_blocked(second)
        stop.resume()
        assert len(await early) == 1
        assert [assignment.type for assignment in await late] == ["docs"]


async def test_concurrent_failures_and_successes_are_all_counted(store_url: str) -> None:
    async with Queue.open(store_url) as before:  # a handle may see other settings for a second
        await before.settings.set("circuit_breaker.failure_threshold", 1000)
        await before.settings.set("circuit_breaker.reset_on_success", "half_open_only")
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 80)
        await hire(queues[0], "many")
        held = await queues[0].claim("many", 80, start=True)
        ends = [
            queues[n % 4].fail(task.token, "crash", retry=False) if n % 2 else queues[n % 4].complete(task.token)
            for n, task in enumerate(held)
        ]
        await together(*ends)
        (row,) = await queues[0].engine.store.read(lambda tx: tx.all("list_breakers", workspace="default"))
        assert load(row).failures == 40


AttemptEnd = Callable[[Queue, Assignment], Awaitable[Any]]
ENDS: list[AttemptEnd] = [
    lambda queue, held: queue.complete(held.token, 1, usage={"tokens_in": 5}),
    lambda queue, held: queue.fail(held.token, "crash", retry=False),
    lambda queue, held: queue.release(held.token),
    lambda queue, held: queue.cancel(held.id),
    lambda queue, held: queue.runtimes.report_gone(held.task().claim.runtime_id or ""),
]


@pytest.mark.parametrize("limit", [1, 3])
async def test_concurrent_claims_never_exceed_the_limit(store_url: str, limit: int) -> None:
    """Counted from after the commit of a claim to before that of its end: if this never exceeds, nothing does."""
    live = most = 0
    met = asyncio.Event()

    async def work(queue: Queue, agent: str, chance: random.Random) -> None:
        nonlocal live, most
        while (await queue.status(fresh=True)).counts.get("ready", 0) + live:
            for held in await queue.claim(agent, start=True):
                live += 1
                most = max(most, live)
                if live >= min(limit, 2):
                    met.set()
                await met.wait()  # claims do overlap where the limit permits it
                await queue.heartbeat(held.token)  # time for others to come
                live -= 1
                await chance.choice(ENDS)(queue, held)

    async with handles(store_url, 4) as queues:
        await queues[0].settings.set("circuit_breaker", None)
        await queues[0].settings.set("max_reclaims", None)
        await queues[0].limits.set("type:code", concurrency=limit)
        await queues[0].submit_many([{"type": "code"}] * 60)
        await hire(queues[0], *(f"agent-{i}" for i in range(12)))
        async with asyncio.timeout(120):
            await together(*(work(queues[i % 4], f"agent-{i}", random.Random(i)) for i in range(12)))
        (left,) = await queues[0].limits.list()
        assert min(limit, 2) <= most <= limit
        assert (left.held, left.full) == (0, False)
        assert await sql(queues[0], "select * from limit_claims") == []


async def test_second_claimer_finds_the_limit_full(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (first, second):
        await first.limits.set("type:code", concurrency=1)
        await first.submit_many([{"type": "code"}] * 4 + [{"type": "docs"}])
        stop = Stop(first, "save_limits")
        early = asyncio.create_task(first.claim("early", types=["code"]))
        await stop.wait()
        late = asyncio.create_task(second.claim("late"))
        await until_blocked(second)
        stop.resume()
        assert len(await early) == 1
        assert [assignment.type for assignment in await late] == ["docs"]


@pytest.mark.parametrize("seed", range(4 if DEEP else 1))
async def test_limit_count_is_exact_after_every_operation(store_url: str, clock: MovedClock, seed: int) -> None:
    """A random walk through claims and their ends; after each step the limit count matches the tasks."""
    chance, at = random.Random(seed), list[float]()
    concurrency, requests, window = 3, 5, 120.0
    async with Queue.open(store_url, clock=clock, seed=seed) as queue:
        await queue.settings.set("circuit_breaker", None)
        await queue.limits.set("type:code", concurrency=concurrency, requests=requests, window_sec=window)
        await queue.submit_many([{"type": "code", "max_attempts": 9}] * 40)
        await hire(queue, "a", "b")
        held: list[Assignment] = []
        for _ in range(60):
            if chance.random() < 0.5:
                taken = await queue.claim(chance.choice("ab"), chance.randrange(1, 4), start=True)
                at += [clock()] * len(taken)
                held += taken
            elif held and chance.random() < 0.8:
                await chance.choice(ENDS)(queue, held[chance.randrange(len(held))])
            else:
                await pass_time(queue, clock, chance.choice([1, 20, 100]))
            running = await sql(queue, "select id from tasks where agent_id is not null")
            held = [task for task in held if task.claim.id in {str(row["id"]) for row in running}]
            (found,) = await queue.limits.list()
            assert found.held == len(running) == len(await sql(queue, "select * from limit_claims")) <= concurrency
            assert sum(1 for then in at if clock() - window < then) <= requests


async def test_killed_process_leaves_limit_count_consistent(store_url: str) -> None:
    """With kill -9 during claims and ends: the count and the claims always share one transaction."""
    chance = random.Random(7)
    async with Queue.open(store_url) as queue:
        await queue.limits.set("type:code", concurrency=2)
        await queue.settings.set("on_stale", "reclaim")  # its processes die often, and that is not the subject
        for _ in range(5):
            command = [sys.executable, "-m", "tests.crashes.busy_client", store_url]
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
            assert process.stdout is not None
            for _ in range(chance.randrange(5, 40)):
                await process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await queue.runtimes.report_gone("client")
        (found,) = await queue.limits.list()
        left = await sql(queue, "select id from tasks where agent_id is not null and type = 'code'")
        assert (found.held, len(await sql(queue, "select * from limit_claims"))) == (len(left), len(left))
