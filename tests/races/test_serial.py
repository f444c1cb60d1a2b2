"""Serial keys under concurrent claims and completions, and killed processes."""

import asyncio
import random

import pytest

from shiftwork import Assignment, Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql
from tests.races.fleet import Stop, handles, hire, together, until_blocked

KEYS, EACH = 3, 20


async def running_twice(queue: Queue) -> list[str]:
    """Keys of which more than one task is held now."""
    rows = await sql(
        queue, "select body ->> 'serial_key' as key from tasks join bodies on task_id = id where agent_id is not null"
    )
    keys = [row["key"] for row in rows]
    return [key for key in set(keys) if keys.count(key) > 1]


@pytest.mark.timeout(120)
async def test_no_two_tasks_of_a_serial_key_run_and_all_complete(store_url: str) -> None:
    chance = random.Random(5)
    async with handles(store_url, 4) as queues:
        await queues[0].settings.set("serialize_by", "key")
        await queues[0].submit_many([{"type": "code", "serial_key": f"k{n % KEYS}"} for n in range(KEYS * EACH)])
        await hire(queues[0], *(f"agent-{n}" for n in range(12)))

        async def turn(number: int) -> list[Assignment]:
            return await queues[number % 4].claim(f"agent-{number}", start=True)

        async def end(number: int, held: Assignment) -> None:
            queue = queues[(number + 1) % 4]
            await (queue.release(held.token) if chance.random() < 0.3 else queue.complete(held.token))

        left, held = KEYS * EACH, list[Assignment]()
        while left:
            ends = [end(number, each) for number, each in enumerate(held)]
            answers = await together(*(turn(number) for number in range(12)), *ends)
            held = [each for answer in answers[:12] for each in answer or ()]
            assert await running_twice(queues[0]) == []
            left = KEYS * EACH - (await queues[0].status(fresh=True)).counts.get("completed", 0)
        assert await sql(queues[0], "select task_id from serials union all select task_id from serial_holds") == []


async def test_claim_meeting_the_end_of_its_serial_key_strands_nothing(postgres_url: str) -> None:
    async with handles(postgres_url, 3) as (first, second, third):
        await first.settings.set("serialize_by", "key")
        made = await first.submit_many([{"type": "code", "serial_key": "a"}] * 2)
        (held,) = await first.claim("one", start=True)
        stop = Stop(second, "hold_serials")
        claiming = asyncio.create_task(second.claim("two"))
        await stop.wait()  # it has seen that the key is taken, and has not yet held its task back
        ending = asyncio.create_task(first.complete(held.token))
        await until_blocked(third)
        stop.resume()
        assert await claiming == []
        await ending
        (now,) = await third.claim("three")
        assert now.id == made[1].id


async def test_claim_arriving_while_serial_key_is_freed_gets_the_task(postgres_url: str) -> None:
    async with handles(postgres_url, 3) as (first, second, third):
        await first.settings.set("serialize_by", "key")
        made = await first.submit_many([{"type": "code", "serial_key": "a"}] * 2)
        (held,) = await first.claim("one", start=True)
        stop = Stop(first, "serial_heirs")
        ending = asyncio.create_task(first.complete(held.token))
        await stop.wait()  # the key is released, and no one can see that yet
        claiming = asyncio.create_task(second.claim("two"))
        await until_blocked(third)
        stop.resume()
        await ending
        assert [each.id for each in await claiming or await second.claim("two")] == [made[1].id]


async def test_dead_process_keeps_no_serial_key(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 2, clock=clock) as (first, second):
        await first.settings.set("serialize_by", "agent_type")
        await first.submit_many([{"type": "code"}] * 2)
        (held,) = await first.claim("gone", start=True)
        assert await second.claim("other") == []
        await pass_time(second, clock, 400)
        (now,) = await second.claim("other", start=True)
        assert now.id != held.id
        await second.complete(now.token)
