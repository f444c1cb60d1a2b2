"""Breakers and limits under claimers that meet: one task under test, never more than allowed, nothing left behind."""

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.queue.protection.breakers import load
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql
from tests.races.fleet import Stop, handles, hire, together, until_blocked

HALF_OPEN_SEC = 60


async def state(queue: Queue) -> str:
    (found,) = await queue.breakers("code")
    return found.state


# -- breakers ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("L-113", "L-123")
async def test_of_forty_claimers_exactly_one_gets_the_task_under_test(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 4, clock=clock) as queues:
        await queues[0].submit_many([{"type": "code"}] * 60)
        await queues[0].trip_breaker("code")
        for _ in range(5):
            clock.advance(HALF_OPEN_SEC)
            answers = await together(*(queues[i % 4].claim(f"agent-{i}", start=True) for i in range(40)))
            (tested,) = [assignment for answer in answers for assignment in answer]
            await queues[0].fail(tested.token, "crash", retry=False)
            assert await state(queues[1]) == "open"


async def test_a_second_claimer_that_saw_the_place_free_finds_it_taken(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (first, second):
        await first.submit_many([{"type": "code"}] * 4 + [{"type": "docs"}])
        await first.trip_breaker("code")
        clock.advance(HALF_OPEN_SEC)
        stop = Stop(first, "save_breakers")
        early = asyncio.create_task(first.claim("early", types=["code"]))
        await stop.wait()  # it has the breaker's lock, and nobody can see that yet
        late = asyncio.create_task(second.claim("late"))
        await until_blocked(second)
        stop.go_on()
        assert len(await early) == 1
        assert [assignment.type for assignment in await late] == ["docs"]


async def test_a_failure_and_a_success_at_the_same_time_both_have_their_say(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].set_setting("circuit_breaker.failure_threshold", 1000)
        await queues[0].set_setting("circuit_breaker.reset_on_success", "half_open_only")
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


# -- limits ------------------------------------------------------------------------------------------------------

End = Callable[[Queue, Assignment], Awaitable[Any]]
ENDS: list[End] = [
    lambda queue, held: queue.complete(held.token, 1, usage={"tokens_in": 5}),
    lambda queue, held: queue.fail(held.token, "crash", retry=False),
    lambda queue, held: queue.release(held.token),
    lambda queue, held: queue.cancel(held.id),
    lambda queue, held: queue.runtime_gone(held.task().claim.runtime_id or ""),
]


@pytest.mark.parametrize("limit", [1, 3])
async def test_claimers_that_meet_never_hold_more_than_the_limit(store_url: str, limit: int) -> None:
    """Counted from after each claim's commit to before its end's: if these never pass the limit, nothing does."""
    live = most = 0

    async def work(queue: Queue, agent: str, chance: random.Random) -> None:
        nonlocal live, most
        while (await queue.status(fresh=True)).counts.get("ready", 0) + live:
            for held in await queue.claim(agent, start=True):
                live += 1
                most = max(most, live)
                await queue.heartbeat(held.token)  # time for others to come
                live -= 1
                await chance.choice(ENDS)(queue, held)

    async with handles(store_url, 4) as queues:
        await queues[0].set_setting("circuit_breaker", None)
        await queues[0].set_setting("max_reclaims", None)
        await queues[0].set_limit("type:code", concurrency=limit)
        await queues[0].submit_many([{"type": "code"}] * 60)
        await hire(queues[0], *(f"agent-{i}" for i in range(12)))
        async with asyncio.timeout(120):
            await together(*(work(queues[i % 4], f"agent-{i}", random.Random(i)) for i in range(12)))
        (left,) = await queues[0].limits()
        assert min(limit, 2) <= most <= limit
        assert (left.held, left.full) == (0, False)
        assert await sql(queues[0], "select * from limit_claims") == []


async def test_a_second_claimer_that_saw_room_finds_none(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (first, second):
        await first.set_limit("type:code", concurrency=1)
        await first.submit_many([{"type": "code"}] * 4 + [{"type": "docs"}])
        stop = Stop(first, "save_limits")
        early = asyncio.create_task(first.claim("early", types=["code"]))
        await stop.wait()
        late = asyncio.create_task(second.claim("late"))
        await until_blocked(second)
        stop.go_on()
        assert len(await early) == 1
        assert [assignment.type for assignment in await late] == ["docs"]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_count_is_true_and_never_too_high(
    store_url: str, clock: MovedClock, seed: int
) -> None:
    """A walk through claims and all their ends; after each step the limit's count is what the tasks say."""
    chance, at = random.Random(seed), list[float]()
    concurrency, requests, window = 3, 5, 120.0
    async with await Queue.open(store_url, clock=clock, seed=seed) as queue:
        await queue.set_setting("circuit_breaker", None)
        await queue.set_limit("type:code", concurrency=concurrency, requests=requests, window_sec=window)
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
            (found,) = await queue.limits()
            assert found.held == len(running) == len(await sql(queue, "select * from limit_claims")) <= concurrency
            assert sum(1 for then in at if clock() - window < then) <= requests


async def test_a_killed_process_leaves_no_more_taken_than_it_holds(store_url: str) -> None:
    """With kill -9 while claims are made and ended: the count and the claims are of one transaction, always."""
    chance = random.Random(7)
    async with await Queue.open(store_url) as queue:
        await queue.set_limit("type:code", concurrency=2)
        await queue.set_setting("on_stale", "reclaim")  # its processes die often, and that is not the subject
        for _ in range(5):
            command = [sys.executable, "-m", "tests.crashes.life", store_url]
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
            assert process.stdout is not None
            for _ in range(chance.randrange(5, 40)):
                await process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await queue.runtime_gone("life")
        (found,) = await queue.limits()
        left = await sql(queue, "select id from tasks where agent_id is not null and type = 'code'")
        assert (found.held, len(await sql(queue, "select * from limit_claims"))) == (len(left), len(left))
