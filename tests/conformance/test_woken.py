"""Claims that wait behind a closed gate are answered when it opens: by its time, by an end, or by somebody's word."""

import asyncio
import gc

import pytest

from shiftwork import Queue
from shiftwork.core.errors import StoreClosed
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.test_breakers import HALF_OPEN_SEC, open_breaker, to_test
from tests.conformance.test_claiming import answer, waiting_claim
from tests.conformance.test_limits import many, only


async def test_when_the_time_of_an_open_breaker_has_come(queue: Queue, clock: MovedClock) -> None:
    await open_breaker(queue)
    await queue.submit(type="code")
    claim = await waiting_claim(queue)
    await pass_time(queue, clock, HALF_OPEN_SEC)
    assert len(await answer(claim)) == 1


async def test_when_a_breaker_closes(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    claim = await waiting_claim(queue, "second")
    await queue.complete(tested.token)
    assert len(await answer(claim)) == 1


async def test_when_the_tested_task_is_given_back(queue: Queue, clock: MovedClock) -> None:
    tested = await to_test(queue, clock)
    claim = await waiting_claim(queue, "second")
    await queue.release(tested.token)
    assert len(await answer(claim)) == 1


async def test_when_somebody_resets_a_breaker(queue: Queue) -> None:
    await queue.submit(type="code")
    await queue.trip_breaker("code")
    claim = await waiting_claim(queue)
    await queue.reset_breaker("code")
    assert len(await answer(claim)) == 1


async def test_when_a_cooldown_is_over(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await queue.cool_down("type:code", 60)
    claim = await waiting_claim(queue)
    await pass_time(queue, clock, 60)
    assert len(await answer(claim)) == 1


async def test_when_somebody_lifts_a_cooldown(queue: Queue) -> None:
    spec = {"constraints": {"model_preferences": ["opus"]}}
    await queue.submit(type="code", spec=spec)
    await queue.cool_down("model:opus", 60)
    claim = await waiting_claim(queue)
    await queue.lift_cooldown("model:opus")
    assert len(await answer(claim)) == 1


async def test_when_a_task_under_a_limit_ends(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 2)
    (held,) = await many(queue, 2)
    claim = await waiting_claim(queue, "other")
    await queue.complete(held.token)
    assert len(await answer(claim)) == 1


async def test_when_a_window_has_room_again(queue: Queue, clock: MovedClock) -> None:
    await queue.set_limit("type:code", requests=1, window_sec=60)
    await queue.submit_many([{"type": "code"}] * 2)
    await many(queue, 1)
    at = (await only(queue)).opens_at
    assert at is not None
    claim = await waiting_claim(queue, "other")
    await pass_time(queue, clock, at - clock())
    assert len(await answer(claim)) == 1


async def test_when_a_limit_is_raised_or_removed(queue: Queue) -> None:
    await queue.set_limit("type:code", concurrency=1)
    await queue.submit_many([{"type": "code"}] * 3)
    await many(queue, 3)
    claim = await waiting_claim(queue, "other")
    await queue.set_limit("type:code", concurrency=2)
    assert len(await answer(claim)) == 1
    claim = await waiting_claim(queue, "third")
    await queue.remove_limit("type:code")
    assert len(await answer(claim)) == 1


async def test_a_claim_that_was_cancelled_while_it_parked_is_in_nobodys_way(queue: Queue) -> None:
    parking = queue._shared.parking
    first = asyncio.create_task(queue.claim("gone", wait=25))
    while not parking._waiters:  # noqa: ASYNC110  # at the first moment: a step later it waits as others do
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not parking._waiters
    claim = await waiting_claim(queue)
    await queue.submit(type="code")
    assert len(await answer(claim)) == 1


async def test_when_an_agent_gets_more_money(queue: Queue) -> None:
    await queue.register_agent(id="worker", budget_remaining_usd=0)
    await queue.submit(type="code", estimated_cost_usd=1)
    for raise_it in (
        lambda: queue.set_agent_budget("worker", 5),
        lambda: queue.set_budget("agent", "worker", 50),
    ):
        claim = await waiting_claim(queue)
        await raise_it()
        (held,) = await answer(claim)
        await queue.release(held.token)
        await queue.set_agent_budget("worker", 0)


async def test_who_would_wait_at_a_closed_queue_is_told_and_nothing_listens_on(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await Queue.open(store_url)
    assert await queue.claim("worker", wait=0.01) == []
    await queue.close()
    with pytest.raises(StoreClosed):
        await queue.claim("worker", wait=5)
    assert [task for task in asyncio.all_tasks() if "Parking._listen" in repr(task)] == []
    gc.collect()  # who ended with an exception that nobody asked for complains here
    assert [record for record in caplog.records if record.name == "asyncio"] == []
