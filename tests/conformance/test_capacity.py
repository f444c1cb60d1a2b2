"""A queue with limits: which tasks are accepted, displaced, refused, and restored."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, QueueFull
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, states, submit_dag, take

HIGH, MEDIUM, LOW = 20, 50, 70


async def limit(queue: Queue, total: int | None = None, **quotas: int) -> None:
    await queue.settings.change({"max_queue_size": total, "priority_quotas": quotas})


async def submit(queue: Queue, *priorities: float, **fields: Any) -> list[str]:
    made = await queue.submit_many([{"type": "code", "priority": priority, **fields} for priority in priorities])
    return [task.id for task in made]


async def submit_one_by_one(queue: Queue, clock: MovedClock, *priorities: float, **fields: Any) -> list[str]:
    """Each a second younger than the one before."""
    made = []
    for priority in priorities:
        clock.advance(1)
        made += await submit(queue, priority, **fields)
    return made


async def is_displaced(queue: Queue, task_id: str) -> bool:
    task = await queue.get(task_id)
    return (task.status, task.failure_reason) == ("dead_lettered", "displaced")


async def displaced(queue: Queue, task_ids: list[str]) -> list[str]:
    return [task_id for task_id in task_ids if await is_displaced(queue, task_id)]


@pytest.mark.requirement("C-032", "C-075", "C-101")
async def test_full_queue_refuses_task_that_cannot_displace_another(queue: Queue) -> None:
    await limit(queue, 2)
    await submit(queue, LOW, LOW)
    with pytest.raises(QueueFull) as caught:
        await queue.submit(type="code", priority=LOW)
    assert caught.value.facts == {"level": "low", "waiting": 2, "limit": 2, "retry_after": 5}
    assert (await queue.status()).depth["total"] == 2
    await take(queue)
    await queue.submit(type="code", priority=LOW)


@pytest.mark.requirement("C-033", "C-124")
async def test_level_at_its_quota_is_refused_although_queue_has_room(queue: Queue) -> None:
    await limit(queue, 10, high=2)
    await submit(queue, HIGH, HIGH)
    with pytest.raises(QueueFull) as caught:
        await queue.submit(type="code", priority=HIGH)
    assert (caught.value.facts["level"], caught.value.facts["limit"]) == ("high", 2)
    await submit(queue, MEDIUM)
    (low,) = await submit(queue, LOW)
    await submit(queue, HIGH)  # a lower level has a place to give
    assert await is_displaced(queue, low)


async def test_batch_is_accepted_whole_or_not_at_all(queue: Queue) -> None:
    await limit(queue, 3)
    await submit(queue, LOW)
    before = await queue.events()
    with pytest.raises(QueueFull):
        await submit(queue, LOW, LOW, LOW)
    with pytest.raises(QueueFull):
        await submit_dag(queue, {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    assert await queue.events() == before
    assert len(await submit(queue, LOW, LOW)) == 2


async def test_free_room_goes_to_batch_members_that_cannot_displace(queue: Queue) -> None:
    await limit(queue, 2)
    (low,) = await submit(queue, LOW)
    await submit(queue, HIGH, LOW)
    assert await is_displaced(queue, low)


async def test_duplicate_submit_needs_no_room_in_full_queue(queue: Queue) -> None:
    await limit(queue, 1)
    made = await queue.submit(type="code", idempotency_key="k")
    again = await queue.submit(type="code", idempotency_key="k")
    assert (again.id, again.duplicate) == (made.id, True)


async def test_refused_idempotency_key_can_be_sent_again(queue: Queue) -> None:
    await limit(queue, 1)
    await queue.submit(type="code")
    with pytest.raises(QueueFull):
        await queue.submit(type="code", id="mine", idempotency_key="k")
    await take(queue)
    made = await queue.submit(type="code", id="mine", idempotency_key="k")
    assert not made.duplicate


async def test_spawned_children_are_refused_when_queue_is_full(queue: Queue) -> None:
    await queue.submit(type="parent")
    parent = await take(queue)
    await limit(queue, 1)
    await queue.spawn(parent.token, [{"type": "child"}])
    with pytest.raises(QueueFull):
        await queue.spawn(parent.token, [{"type": "child"}])
    assert (await queue.status()).depth["total"] == 1


async def test_accepted_task_is_never_refused_on_retry_or_rerun(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 1)
    await queue.submit(type="code")
    held = await take(queue)
    (other,) = await submit(queue, MEDIUM)
    await queue.fail(held.token, "crash")
    assert (await queue.get(held.id)).status == "retrying"
    await queue.tasks.rerun((await queue.cancel(other)).task_id)
    await pass_time(queue, clock, 400)
    assert (await queue.status()).depth["total"] == 2
    with pytest.raises(QueueFull):
        await queue.submit(type="code")


async def test_overflow_reject_displaces_no_task(queue: Queue) -> None:
    await limit(queue, 1)
    await queue.settings.set("overflow", "reject")
    await submit(queue, LOW)
    with pytest.raises(QueueFull):
        await queue.submit(type="code", priority=HIGH)


@pytest.mark.parametrize("how", ["before the limit", "after it"])
async def test_every_waiting_task_counts_against_the_limit(queue: Queue, how: str) -> None:
    if how == "after it":
        await limit(queue, 4)
    parent = await queue.submit(type="code", priority=LOW)
    await queue.submit(type="code", priority=LOW, dependencies=[parent.id])
    await queue.submit(type="code", priority=LOW)
    await queue.submit(type="other", priority=LOW)
    (held,) = await queue.claim("worker", types=["other"], start=True)
    await queue.fail(held.token, "crash")
    await limit(queue, 4)
    with pytest.raises(QueueFull) as caught:
        await queue.submit(type="code", priority=LOW)
    assert caught.value.facts["waiting"] == 4


async def test_workspaces_have_separate_queue_limits(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await other.settings.change({"max_queue_size": 1})
    await submit(queue, LOW, LOW, LOW)
    await other.submit(type="code", priority=LOW)
    with pytest.raises(QueueFull):
        await other.submit(type="code", priority=LOW)


@pytest.mark.requirement("C-035", "C-036", "C-193")
async def test_oldest_task_of_lowest_level_is_displaced_first(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 4)
    made = await submit_one_by_one(queue, clock, MEDIUM, LOW, LOW, HIGH)
    await submit(queue, HIGH)
    assert await displaced(queue, made) == [made[1]]
    await submit(queue, MEDIUM)
    assert await displaced(queue, made) == made[1:3]
    await submit(queue, HIGH)
    assert await displaced(queue, made) == made[:3]
    assert (await queue.status()).depth == {"high": 3, "medium": 1, "low": 0, "total": 4}


@pytest.mark.requirement("C-036", "C-124")
async def test_full_queue_with_full_levels_still_accepts_more_urgent_tasks(queue: Queue) -> None:
    await limit(queue, 10, high=1, medium=5, low=4)
    made = await submit(queue, *[HIGH] * 1, *[MEDIUM] * 5, *[LOW] * 4)
    await submit(queue, HIGH)
    assert len(await displaced(queue, made[6:])) == 1
    with pytest.raises(QueueFull):
        await submit(queue, LOW)


@pytest.mark.requirement("C-191", "C-192", "C-193", "C-194")
async def test_plain_old_tasks_are_displaced_before_retried_or_needed_ones(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"retry.strategy": "immediate", "max_queue_size": 6})
    (above,) = await submit(queue, HIGH)
    (depends,) = await submit(queue, LOW, dependencies=[above])
    (tried,) = await submit(queue, LOW, type="flaky")
    (held,) = await queue.claim("worker", types=["flaky"], start=True)
    await queue.fail(held.token, "crash")
    await pass_time(queue, clock, 1)
    (old,) = await submit(queue, LOW)
    clock.advance(301)
    recent = await submit_one_by_one(queue, clock, LOW, LOW)
    gone: list[str] = []
    for _ in range(5):
        await submit(queue, HIGH)
        (newest,) = set(await displaced(queue, [above, depends, tried, old, *recent])) - set(gone)
        gone.append(newest)
    assert gone == [old, tried, *recent, depends]
    with pytest.raises(QueueFull):
        await submit(queue, HIGH)


async def test_tasks_under_way_are_not_displaced(queue: Queue) -> None:
    await limit(queue, 2)
    await queue.submit(type="parent", priority=LOW)
    parent = await take(queue)
    await queue.spawn(parent.token, [{"type": "child", "priority": LOW}], wait=True)
    child = await take(queue)
    await submit(queue, LOW)
    await submit(queue, HIGH)
    with pytest.raises(QueueFull):
        await submit(queue, MEDIUM)
    assert (await queue.get(parent.id)).status == "pending"
    assert (await queue.get(child.id)).status == "running"


@pytest.mark.requirement("C-195", "C-196", "C-197")
async def test_displaced_task_becomes_dead_letter_with_event_and_reason(queue: Queue) -> None:
    await limit(queue, 1)
    (low,) = await submit(queue, LOW)
    await submit(queue, HIGH)
    (letter,) = await queue.dead_letters.list()
    assert (letter.task_id, letter.reason) == (low, "displaced")
    assert await events_named(queue, "task.displaced") == [low]
    (alert,) = await queue.alerts.list(kind="displaced")
    assert (alert.task_id, alert.message) == (low, f"Task {low} was displaced")
    assert await states(queue, low) == ["created", "pending", "ready", "dead_lettered"]
    (hold,) = (await queue.explain(low)).holds
    assert (hold.kind, hold.what) == ("displaced", "it was displaced by more urgent work")


async def test_dependents_of_a_displaced_task_keep_waiting(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("on_dependency_failed", "cancel")
    await limit(queue, 2)
    (low,) = await submit(queue, LOW)
    (child,) = await submit(queue, MEDIUM, dependencies=[low])
    await submit(queue, HIGH)
    assert await is_displaced(queue, low)
    assert (await queue.get(child)).status == "pending"
    await finish(queue)
    await pass_time(queue, clock, 300)
    assert (await take(queue, "another")).id == low


async def test_dropped_task_is_cancelled_and_stays_readable(queue: Queue) -> None:
    await limit(queue, 1)
    await queue.settings.set("overflow", "drop_oldest_low")
    (low,) = await submit(queue, LOW)
    await submit(queue, HIGH)
    task = await queue.get(low)
    assert (task.status, task.cancel_reason) == ("cancelled", "overflow")


@pytest.mark.requirement("C-198")
async def test_displaced_tasks_return_when_there_is_room(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 2)
    low = await submit_one_by_one(queue, clock, LOW, LOW)
    await submit(queue, HIGH, HIGH)
    await pass_time(queue, clock, 300)
    assert await displaced(queue, low) == low
    await finish(queue)
    done = await pass_time(queue, clock, 300)
    assert done["displaced"] == {"resubmitted": 1}
    assert await displaced(queue, low) == low[1:]
    assert (await queue.get(low[0])).status == "ready"
    (event,) = [event for event in (await queue.tasks.history(low[0])).events if event.verb == "reviewed"]
    assert (event.actor, event.reason) == ("maintenance:displaced", "there is room again")
    await queue.settings.unset("max_queue_size")
    await pass_time(queue, clock, 300)
    assert await displaced(queue, low) == []


async def test_more_urgent_displaced_tasks_return_first(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 2)
    low, medium = await submit_one_by_one(queue, clock, LOW, MEDIUM)
    await submit(queue, HIGH, HIGH)
    await finish(queue)
    await pass_time(queue, clock, 300)
    assert await displaced(queue, [low, medium]) == [low]


async def test_displaced_task_keeps_its_attempt_count(queue: Queue, clock: MovedClock) -> None:
    (task_id,) = await submit(queue, LOW)
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 60)
    await limit(queue, 1)
    await submit(queue, HIGH)
    assert await is_displaced(queue, task_id)
    await finish(queue)
    await pass_time(queue, clock, 300)
    task = await queue.get(task_id)
    assert (task.status, task.attempts) == ("ready", 1)


async def test_displaced_task_keeps_its_idempotency_key(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 1)
    (low,) = await submit(queue, LOW, idempotency_key="k")
    await submit(queue, HIGH)
    again = await queue.submit(type="code", priority=LOW, idempotency_key="k")
    assert (again.id, again.duplicate) == (low, True)
    await finish(queue)
    await pass_time(queue, clock, 300)
    assert (await take(queue, "another")).id == low


async def test_displaced_task_can_be_displaced_again(queue: Queue, clock: MovedClock) -> None:
    await limit(queue, 1)
    (low,) = await submit(queue, LOW)
    for round_ in range(3):
        await submit(queue, HIGH)
        assert await is_displaced(queue, low), round_
        await finish(queue)
        await pass_time(queue, clock, 300)
        assert (await queue.get(low)).status == "ready"


@pytest.mark.requirement("C-101", "C-261")
async def test_concurrent_submits_never_exceed_the_limit(store_url: str) -> None:
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(await Queue.open(store_url)) for _ in range(4)]
        await limit(queues[0], 20, low=10)
        for each in queues:
            each.engine.settings_cache.forget("default")  # as a second later
        calls = [each.submit(type="code", priority=(LOW, MEDIUM)[n % 2]) for n, each in enumerate(queues * 15)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, QueueFull) for answer in answers if isinstance(answer, BaseException))
        let_in = [answer for answer in answers if not isinstance(answer, BaseException)]
        status = await queues[0].status(fresh=True)
        assert status.depth["total"] == 20
        assert len(let_in) - len(await queues[0].dead_letters.list()) == 20
        assert status.depth["low"] <= 10


async def test_displacing_submits_during_claims_lose_no_task(store_url: str) -> None:
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(await Queue.open(store_url)) for _ in range(3)]
        await limit(queues[0], 10)
        for each in queues:
            each.engine.settings_cache.forget("default")
        await submit(queues[0], *[LOW] * 10)
        submits = [queues[n % 2].submit(type="code", priority=HIGH) for n in range(20)]
        claims = [queues[2].claim(f"agent-{n}", start=True) for n in range(10)]
        answers = await asyncio.gather(*submits, *claims, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(answer, QueueFull) for answer in refused)
        status = await queues[0].status(fresh=True)
        assert status.depth["total"] <= 10
        assert sum(status.counts.values()) == 10 + 20 - len(refused)


@pytest.mark.requirement("C-135")
async def test_backpressure_reports_remaining_room_per_level(queue: Queue) -> None:
    free = await queue.control.backpressure()
    assert (free.state, free.limits, free.room) == ("normal", {}, {"low": None, "medium": None, "high": None})
    await limit(queue, 10, high=2)
    await submit(queue, *[MEDIUM] * 7)
    some = await queue.control.backpressure()
    assert (some.state, some.full, some.retry_after_sec) == ("normal", [], None)
    assert some.waiting == {"high": 0, "medium": 7, "low": 0, "total": 7}
    assert some.room == {"high": 2, "medium": 3, "low": 3}
    await submit(queue, HIGH, HIGH)
    more = await queue.control.backpressure()
    assert (more.state, more.full, more.retry_after_sec) == ("critical", ["high"], 5)
    assert more.warnings == ["warning: total 9 of 10", "critical: high 2 of 2"]


async def test_submit_with_wait_is_accepted_when_room_appears(queue: Queue) -> None:
    await limit(queue, 1)
    await submit(queue, LOW)
    waiting = asyncio.create_task(queue.submit(type="code", priority=LOW, wait_for_room=60))
    batch = asyncio.create_task(queue.submit_many([{"type": "code", "priority": LOW}], wait_for_room=60))
    for _ in range(2):
        await _until_taken(queue)
    assert {(await waiting).status, (await batch)[0].status} == {"ready"}


async def _until_taken(queue: Queue) -> None:
    while not (claimed := await queue.claim("worker", start=True, wait=5)):
        pass
    await queue.complete(claimed[0].token)


async def test_submit_with_wait_is_refused_after_its_timeout(queue: Queue) -> None:
    await limit(queue, 1)
    await submit(queue, LOW)
    with pytest.raises(QueueFull):
        await queue.submit(type="code", priority=LOW, wait_for_room=0.01)
    with pytest.raises(InputError, match="expected 0 to 86400 seconds"):
        await queue.submit(type="code", wait_for_room=-1)
