"""One task of a key at a time: held back while another runs, and brought back by whoever ends that one."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql, take

Way = Callable[[Queue, MovedClock, Assignment], Awaitable[Any]]


async def silence(queue: Queue, clock: MovedClock, held: Assignment) -> None:
    """Nothing more is heard of the agent; its task is taken back and, once its delay is over, may run again."""
    await pass_time(queue, clock, 400)
    await pass_time(queue, clock, 60)
    again = (await queue.claim("late", start=True))[0]
    assert again.id == held.id
    await queue.complete(again.token)


ENDS: dict[str, Way] = {
    "completed": lambda queue, _, held: queue.complete(held.token, 1),
    "failed for good": lambda queue, _, held: queue.fail(held.token, "crash", retry=False),
    "cancelled": lambda queue, _, held: queue.cancel(held.id),
    "waiting": lambda queue, _, held: queue.wait(held.token, "nap", until=9e9),
    "silent": silence,
}


async def by_key(queue: Queue, *keys: str, **fields: Any) -> list[str]:
    await queue.set_setting("serialize_by", "key")
    made = await queue.submit_many([{"type": "code", "serial_key": key, **fields} for key in keys])
    return [each.id for each in made]


async def nothing_is_left(queue: Queue) -> bool:
    rows = await sql(queue, "select task_id from serials union all select task_id from serial_holds")
    return rows == []


async def test_of_two_tasks_with_one_key_the_second_waits(queue: Queue) -> None:
    first, second, other = await by_key(queue, "a", "a", "b")
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    assert [each.id for each in await queue.claim("many", 10)] == [first, other]
    assert (await queue.get(second)).hold == "serial"
    assert (await queue.get(second)).serial_key == "a"


@pytest.mark.parametrize("end", ENDS)
async def test_whatever_ends_the_first_brings_the_second(queue: Queue, clock: MovedClock, end: str) -> None:
    first, second = await by_key(queue, "a", "a")
    held = await take(queue)
    assert held.id == first
    assert await queue.claim("other") == []
    await ENDS[end](queue, clock, held)
    now = await take(queue, "other")
    assert now.id == second
    await queue.complete(now.token)
    assert await nothing_is_left(queue)


async def test_what_is_given_back_does_not_jump_the_queue_of_its_key(queue: Queue, clock: MovedClock) -> None:
    ids = await by_key(queue, "a")
    held = await take(queue)
    clock.advance(60)
    ids += await by_key(queue, "a", priority=0)
    assert await queue.claim("other") == []
    await queue.release(held.token)
    assert (await take(queue, "other")).id == ids[1]
    assert await queue.claim("third") == []


async def test_the_best_of_those_that_wait_comes_next(queue: Queue, clock: MovedClock) -> None:
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


async def test_a_changed_priority_counts_while_it_is_held_back(queue: Queue) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    usual, raised = await by_key(queue, "a", "a")
    assert await queue.claim("other") == []
    await queue.update(raised, {"priority": 1})
    await queue.complete(held.token)
    assert (await take(queue)).id == raised
    assert (await queue.get(usual)).status == "ready"


async def test_what_is_cancelled_while_it_is_held_back_keeps_nobody_waiting(queue: Queue) -> None:
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


async def test_an_heir_that_is_cancelled_passes_its_turn_on(queue: Queue, clock: MovedClock) -> None:
    await by_key(queue, "a")
    held = await take(queue)
    heir, last = await by_key(queue, "a", "a")
    assert await queue.claim("other") == []
    await queue.complete(held.token)
    assert [(await queue.get(id_)).hold for id_ in (heir, last)] == [None, "serial"]
    await queue.cancel(heir)
    assert await queue.claim("other") == []
    await pass_time(queue, clock, 6)
    now = await take(queue, "other")
    assert now.id == last
    await queue.complete(now.token)
    assert await nothing_is_left(queue)


async def test_a_type_can_be_serial_whoever_submits(queue: Queue) -> None:
    await queue.set_setting("serialize_by", "agent_type", type="deploy")
    await queue.submit_many([{"type": "deploy"}] * 3 + [{"type": "code"}] * 2)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    assert sorted(each.type for each in await queue.claim("many", 10)) == ["code", "code", "deploy"]


async def test_without_a_key_or_without_the_setting_tasks_run_beside_each_other(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "serial_key": "a"}] * 2)
    await queue.set_setting("serialize_by", "key")
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    assert len(await queue.claim("many", 10)) == 4


async def test_a_crowd_with_one_key_does_not_stand_in_the_way_of_others(queue: Queue) -> None:
    """Tasks that must wait leave the claim index by the hundred, so that a few claims reach what is behind them."""
    await by_key(queue, *["a"] * 600)
    behind = (await queue.submit(type="code", serial_key="b", priority=99)).id
    reached = [each.id for number in range(4) for each in await queue.claim(f"agent-{number}")]
    assert behind in reached
    assert len(reached) == 2


async def test_a_retry_waits_for_its_key_like_all_others(queue: Queue, clock: MovedClock) -> None:
    first, second = await by_key(queue, "a", "a")
    await queue.fail((await take(queue)).token, "crash")
    held = await take(queue)
    assert held.id == second
    await pass_time(queue, clock, 60)
    assert await queue.claim("other") == []
    await queue.complete(held.token)
    assert (await take(queue)).id == first


async def test_a_limit_that_keeps_a_task_from_running_keeps_no_key(queue: Queue) -> None:
    first, second = await by_key(queue, "a", "a")
    await queue.submit(type="code", serial_key="z", priority=0)
    await queue.set_limit("type:code", concurrency=1)
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    for expected in ("z", "a", "a"):
        (held,) = await queue.claim("many", 10, start=True)
        assert held.task().serial_key == expected
        await queue.complete(held.token)
    assert [(await queue.get(id_)).status for id_ in (first, second)] == ["completed"] * 2
    assert await nothing_is_left(queue)


async def test_what_runs_is_not_held_back_itself(queue: Queue) -> None:
    await by_key(queue, "a", "a", "b")
    await queue.register_agent(id="many", max_concurrent_tasks=10)
    running = await queue.claim("many", 10)
    assert [(await queue.get(each.id)).hold for each in running] == [None, None]


async def test_explain_names_the_task_that_runs(queue: Queue) -> None:
    first, second = await by_key(queue, "a", "a")
    await take(queue)
    assert await queue.claim("other") == []
    (hold,) = (await queue.explain(second)).holds
    assert (hold.kind, hold.tasks) == ("serial", [first])
