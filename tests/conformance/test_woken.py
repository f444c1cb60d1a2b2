"""Claims that wait behind a closed gate are answered when it opens: by time, by the end of a task, or by a person."""

import asyncio
import gc

import pytest

from shiftwork import Queue
from shiftwork.model.errors import StoreClosed
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.test_breakers import HALF_OPEN_SEC, open_breaker, to_test
from tests.conformance.test_claiming import answer, waiting_claim
from tests.conformance.test_limits import many, only


async def test_waiting_claim_is_answered_when_breaker_interval_ends(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    claim = await waiting_claim(queue)
    await pass_time(queue, clock, HALF_OPEN_SEC)
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_breaker_closes(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    claim = await waiting_claim(queue, "second")
    await queue.complete(tested.token)
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_the_probe_is_released(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    claim = await waiting_claim(queue, "second")
    await queue.release(tested.token)
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_breaker_is_reset(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.breakers.trip("code")
    claim = await waiting_claim(queue)
    await queue.breakers.reset("code")
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_cooldown_ends(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await queue.cooldowns.set("type:code", 60)
    claim = await waiting_claim(queue)
    await pass_time(queue, clock, 60)
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_cooldown_is_lifted(queue: Queue) -> None:
    spec = {"constraints": {"model_preferences": ["opus"]}}
    await queue.submit(type="code", spec=spec)
    await queue.cooldowns.set("model:opus", 60)
    claim = await waiting_claim(queue)
    await queue.cooldowns.lift("model:opus")
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_a_limited_task_ends(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    claim = await waiting_claim(queue, "other")
    await queue.complete(held.token)
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_the_window_has_room(queue: Queue, clock: MovedClock) -> None:
    await queue.limits.set("type:code", requests=1, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 2)
    await many(queue, 1)
    at = (await only(queue)).opens_at
    assert at is not None
    claim = await waiting_claim(queue, "other")
    await pass_time(queue, clock, at - clock())
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_limit_is_raised_or_removed(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 3)
    await many(queue, 3)
    claim = await waiting_claim(queue, "other")
    await queue.limits.set("type:code", concurrency=2)
    assert len(await answer(claim)) == 1
    claim = await waiting_claim(queue, "third")
    await queue.limits.remove("type:code")
    assert len(await answer(claim)) == 1


async def test_cancelled_waiting_claim_does_not_block_others(queue: Queue) -> None:
    claim_waiters = queue.executor.shared.claim_waiters
    first = asyncio.create_task(queue.claim("gone", wait=25))
    while not claim_waiters._waiters:  # noqa: ASYNC110  # at the first moment: a step later it waits as others do
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not claim_waiters._waiters
    claim = await waiting_claim(queue)
    await queue.submit(type="code")
    assert len(await answer(claim)) == 1


async def test_waiting_claim_is_answered_when_agent_budget_is_raised(queue: Queue) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=0)
    await queue.submit(type="code", estimated_cost_usd=1)
    for raise_it in (
        lambda: queue.agents.set_budget("worker", 5),
        lambda: queue.budgets.set("agent", "worker", ceiling_usd=50),
    ):
        claim = await waiting_claim(queue)
        await raise_it()
        (held,) = await answer(claim)
        await queue.release(held.token)
        await queue.agents.set_budget("worker", 0)


async def test_waiting_claim_on_a_closed_queue_raises_and_leaves_no_listener(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await Queue.open(store_url)
    assert await queue.claim("worker", wait=0.01) == []
    await queue.close()
    with pytest.raises(StoreClosed):
        await queue.claim("worker", wait=5)
    assert [task for task in asyncio.all_tasks() if "Parking._listen" in repr(task)] == []
    gc.collect()  # who ended with an exception that no one asked for complains here
    assert [record for record in caplog.records if record.name == "asyncio"] == []
