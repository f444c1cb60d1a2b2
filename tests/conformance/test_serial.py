"""One task per key at a time: others are held back while it runs, and released by any end of it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, take

Way = Callable[[Queue, MovedClock, Assignment], Awaitable[Any]]


async def silence(queue: Queue, clock: MovedClock, held: Assignment) -> None:
    """Let the agent fall silent; its task is reclaimed and may run again after its delay."""
    await pass_time(queue, clock, 400)
    await pass_time(queue, clock, 60)
    again = (await queue.claim("late", start=True))[0]
    assert again.id == held.id
    await queue.complete(again.token)


ENDS: dict[str, Way] = {
    "completed": lambda queue, _, held: queue.complete(held.token, 1),
    "failed for good": lambda queue, _, held: queue.fail(held.token, "crash", retry=False),
    "cancelled": lambda queue, _, held: queue.cancel(held.id),
    "waiting": lambda queue, _, held: queue.waits.wait(held.token, "nap", until=9e9),
    "silent": silence,
}


async def by_key(queue: Queue, *keys: str, **fields: Any) -> list[str]:
    await queue.settings.set("serialize_by", "key")
    made = await queue.submit_many([{"type": "code", "serial_key": key, **fields} for key in keys])
    return [each.id for each in made]


async def nothing_is_left(queue: Queue) -> bool:
    rows = await sql(queue, "select task_id from serials union all select task_id from serial_holds")
    return rows == []


async def test_second_task_with_same_serial_key_waits(queue: Queue) -> None:
    first, second, other = await by_key(queue, "a", "a", "b")
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    assert [each.id for each in await queue.claim("many", 10)] == [first, other]
    assert (await queue.get(second)).hold == "serial"
    assert (await queue.get(second)).serial_key == "a"


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_the_first_task_unblocks_the_second(queue: Queue, clock: MovedClock, end: str) -> None:
    first, second = await by_key(queue, "a", "a")
    held = await take(queue)
    assert held.id == first
    assert await queue.claim("other") == []
    await ENDS[end](queue, clock, held)
    now = await take(queue, "other")
    assert now.id == second
    await queue.complete(now.token)
    assert await nothing_is_left(queue)


async def test_released_task_does_not_overtake_tasks_of_its_key(queue: Queue, clock: MovedClock) -> None:
    ids = await by_key(queue, "a")
    held = await take(queue)
    clock.advance(60)
    ids += await by_key(queue, "a", priority=0)
    assert await queue.claim("other") == []
    await queue.release(held.token)
    assert (await take(queue, "other")).id == ids[1]
    assert await queue.claim("third") == []


async def test_highest_ranked_waiting_task_of_a_key_is_next(queue: Queue, clock: MovedClock) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    low, high = [(await by_key(queue, "a", priority=priority))[0] for priority in (90, 10)]
    aged = (await by_key(queue, "a", priority=95, priority_boost_per_minute=10))[0]
    assert await queue.claim("other") == []
    clock.advance(3600)
    for expected in (aged, high, low):
        await queue.complete(held.token)
        held = await take(queue)
        assert held.id == expected


async def test_changed_priority_counts_while_held_by_serial_key(queue: Queue) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    usual, raised = await by_key(queue, "a", "a")
    assert await queue.claim("other") == []
    await queue.tasks.update(raised, {"priority": 1})
    await queue.complete(held.token)
    assert (await take(queue)).id == raised
    assert (await queue.get(usual)).status == "ready"


async def test_cancelled_held_task_does_not_block_its_key(queue: Queue) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    gone, stays = await by_key(queue, "a", "a")
    assert await queue.claim("other") == []
    await queue.cancel(gone)
    await queue.complete(held.token)
    last = await take(queue)
    assert last.id == stays
    await queue.complete(last.token)
    assert await nothing_is_left(queue)


async def test_cancelled_successor_passes_its_turn_on(queue: Queue, clock: MovedClock) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    successor, last = await by_key(queue, "a", "a")
    assert await queue.claim("other") == []
    await queue.complete(held.token)
    assert [(await queue.get(id_)).hold for id_ in (successor, last)] == [None, "serial"]
    await queue.cancel(successor)
    assert await queue.claim("other") == []
    await pass_time(queue, clock, 6)
    now = await take(queue, "other")
    assert now.id == last
    await queue.complete(now.token)
    assert await nothing_is_left(queue)


async def test_type_can_be_serialised_by_setting(queue: Queue) -> None:
    await queue.settings.set("serialize_by", "agent_type", type="deploy")
    await queue.submit_many([{"type": "deploy"}] * 3 + [{"type": "code"}] * 2)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    assert sorted(each.type for each in await queue.claim("many", 10)) == ["code", "code", "deploy"]


async def test_tasks_without_key_or_setting_run_concurrently(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "serial_key": "a"}] * 2)
    await queue.settings.set("serialize_by", "key")
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    assert len(await queue.claim("many", 10)) == 4


async def test_many_tasks_of_one_key_do_not_block_others(queue: Queue) -> None:
    """Waiting tasks leave the claim index by the hundred, so that a few claims reach the tasks behind them."""
    await by_key(queue, *["a"] * 600)
    behind = (await queue.submit(type="code", serial_key="b", priority=99)).id
    reached = [each.id for number in range(4) for each in await queue.claim(f"agent-{number}")]
    assert behind in reached
    assert len(reached) == 2


async def test_retry_waits_for_its_serial_key(queue: Queue, clock: MovedClock) -> None:
    first, second = await by_key(queue, "a", "a")
    await queue.fail((await take(queue)).token, "crash")
    held = await take(queue)
    assert held.id == second
    await pass_time(queue, clock, 60)
    assert await queue.claim("other") == []
    await queue.complete(held.token)
    assert (await take(queue)).id == first


async def test_limited_task_does_not_occupy_its_serial_key(queue: Queue) -> None:
    first, second = await by_key(queue, "a", "a")
    await queue.submit(type="code", serial_key="z", priority=0)
    await queue.limits.set("type:code", concurrency=1)
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    for expected in ("z", "a", "a"):
        (held,) = await queue.claim("many", 10, start=True)
        assert held.task().serial_key == expected
        await queue.complete(held.token)
    assert [(await queue.get(id_)).status for id_ in (first, second)] == ["completed"] * 2
    assert await nothing_is_left(queue)


async def test_running_task_is_not_marked_as_held(queue: Queue) -> None:
    await by_key(queue, "a", "a", "b")
    await queue.agents.register(id="many", max_concurrent_tasks=10)
    running = await queue.claim("many", 10)
    assert [(await queue.get(each.id)).hold for each in running] == [None, None]


async def test_explain_names_the_running_task_of_the_key(queue: Queue) -> None:
    first, second = await by_key(queue, "a", "a")
    await take(queue)
    assert await queue.claim("other") == []
    (hold,) = (await queue.explain(second)).holds
    assert (hold.kind, hold.tasks) == ("serial", [first])
