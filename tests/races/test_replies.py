"""The same request sent twice at once has one effect and one answer."""

import asyncio

import pytest

from shiftwork.model.errors import WrongState
from tests.conformance.test_replies import keyed
from tests.races.fleet import Stop, errors, handles, hire, take_all, together, until_blocked


async def test_submit_sent_by_many_at_once_creates_one_task(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        for number in range(10):
            answers = await together(*(keyed(queues[i % 4], f"key-{number}").submit(type="code") for i in range(8)))
            assert len(set(map(str, answers))) == 1
        assert (await queues[0].status()).counts == {"ready": 10}


async def test_failure_sent_twice_at_once_counts_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        await one.submit_many([{"type": "code"}] * 10)
        for taken in await take_all(one, "worker", 10):
            first, again = await together(*(keyed(q, taken.token).fail(taken.token, "crash") for q in (one, two)))
            assert first == again
            assert not first.repeated
            assert (await one.get(taken.id)).attempts == 1


async def test_two_requests_under_one_key_have_one_effect(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        for number in range(10):
            refused = await errors(
                keyed(one, f"key-{number}", "left").submit(type="left"),
                keyed(two, f"key-{number}", "right").submit(type="right"),
            )
            assert refused == ["idempotency_key_reused"]
        assert (await one.status()).counts == {"ready": 10}


async def test_claim_sent_twice_at_once_is_made_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        await hire(one, "worker")
        await one.submit_many([{"type": "code"}] * 20)
        for number in range(10):
            claims = [keyed(queue, f"key-{number}").claim("worker") for queue in (one, two)]
            answers = await asyncio.gather(*claims, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["Repeated", "list"]
        assert (await one.status()).counts == {"claimed": 10, "ready": 10}


async def test_claim_sent_twice_by_a_full_agent_is_recognised(store_url: str) -> None:
    """The second finds no room, since the first took it: it must not be answered as empty."""
    async with handles(store_url, 2) as (one, two):
        for number in range(10):
            agent = f"worker-{number}"
            await one.agents.register(id=agent, max_concurrent_tasks=1)
            await one.submit(type="code")
            claims = [keyed(queue, f"key-{number}").claim(agent) for queue in (one, two)]
            answers = await asyncio.gather(*claims, return_exceptions=True)
            assert sorted(type(answer).__name__ for answer in answers) == ["Repeated", "list"]


async def test_second_request_waits_for_the_first_to_commit(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (one, two):
        stop = Stop(one, "insert_events")
        first = asyncio.create_task(keyed(one).submit(type="code"))
        await stop.wait()
        second = asyncio.create_task(keyed(two).submit(type="code"))
        await until_blocked(one)
        stop.resume()
        assert await first == await second
        assert (await one.status()).counts == {"ready": 1}


@pytest.mark.parametrize("ending", ["raises", "is given up"])
async def test_second_request_runs_when_the_first_is_rolled_back(postgres_url: str, ending: str) -> None:
    async with handles(postgres_url, 2) as (one, two):
        task = await one.submit(type="code")
        (taken,) = await take_all(one, "worker", 1)
        stop = Stop(one, "lock_tasks")
        first = asyncio.create_task(keyed(one).tasks.rerun(task.id))
        await stop.wait()  # it has the key
        second = asyncio.create_task(keyed(two).tasks.update(task.id, {"priority": 5}))
        await until_blocked(one)
        await end(first, stop, ending)
        with pytest.raises(WrongState, match="unclaimed"):  # its own answer, not the first one's
            await second
        await two.complete(taken.token)
        assert (await keyed(two).tasks.rerun(task.id)).status == "ready"


async def end(first: asyncio.Task[object], stop: Stop, ending: str) -> None:
    if ending == "raises":
        stop.resume()
    else:
        first.cancel()
    with pytest.raises(WrongState if ending == "raises" else asyncio.CancelledError):
        await first
