"""Claim order: levels, priorities, age, deadlines, and the place of a retry."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, ids_in_order, take, viewed

HIGH, MEDIUM, LOW = 20, 50, 70


async def submit(queue: Queue, priority: float = MEDIUM, type_: str = "Ranking", **fields: object) -> str:
    """A task unlike all others, so that none is a duplicate."""
    number = len((await queue.tasks.list(limit=1000)).tasks)
    made = await queue.submit({"type": type_, "priority": priority, "payload": {"n": number}, **fields})
    return made.id


@pytest.mark.requirement("C-018", "C-022", "C-078", "C-148", "C-149", "C-250")
async def test_coscientist_levels_are_strictly_ordered(coscientist: Queue) -> None:
    low, medium, high = [await submit(coscientist, priority) for priority in (LOW, MEDIUM, HIGH)]
    later = await submit(coscientist, HIGH)
    assert await ids_in_order(coscientist) == [high, later, medium, low]


@pytest.mark.requirement("C-019", "C-023", "C-234", "C-236", "C-254")
async def test_within_a_level_the_older_task_goes_first(coscientist: Queue, clock: MovedClock) -> None:
    submitted = []
    for _ in range(5):
        submitted.append(await submit(coscientist))
        clock.advance(1)
    assert await ids_in_order(coscientist) == submitted


@pytest.mark.requirement("C-235")
async def test_task_id_breaks_a_tie(coscientist: Queue) -> None:
    submitted = [await submit(coscientist) for _ in range(5)]
    assert await ids_in_order(coscientist) == sorted(submitted)


@pytest.mark.requirement("C-021")
async def test_type_boost_raises_its_tasks(coscientist: Queue) -> None:
    await coscientist.settings.set("type_boost", 10, type="Reflection")
    plain = await submit(coscientist, type_="Ranking")
    boosted = await submit(coscientist, type_="Reflection")
    assert await ids_in_order(coscientist) == [boosted, plain]


@pytest.mark.requirement("C-020", "C-083")
async def test_retry_priority_delta_changes_priority(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("retry.priority_delta", -30)
    failed = await submit(coscientist)
    await coscientist.fail((await take(coscientist)).token, "network")
    waiting = await submit(coscientist)
    await pass_time(coscientist, clock, 8)
    assert (await coscientist.get(failed)).priority == HIGH
    assert await ids_in_order(coscientist) == [failed, waiting]


async def test_retry_keeps_its_place_in_the_order(queue: Queue, clock: MovedClock) -> None:
    failed = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    clock.advance(1)
    later = (await queue.submit(type="code")).id
    await pass_time(queue, clock, 15)
    assert await ids_in_order(queue) == [failed, later]


async def test_retry_in_redis_profile_goes_to_the_end(streams: Queue, clock: MovedClock) -> None:
    failed = await submit(streams, idempotency_key="a")
    await streams.fail((await take(streams)).token, "crash")
    later = await submit(streams, idempotency_key="b")
    await pass_time(streams, clock, 60)
    assert await ids_in_order(streams) == [later, failed]


@pytest.mark.requirement("C-024", "C-225", "C-226")
async def test_low_task_becomes_medium_after_ten_minutes_and_high_after_twenty(
    coscientist: Queue, clock: MovedClock
) -> None:
    task_id = await submit(coscientist, LOW)
    levels = []
    for step in (599, 1, 599, 1):
        await pass_time(coscientist, clock, step)
        levels.append((await viewed(coscientist, "coscientist", task_id))["priority"])
    assert levels == ["Low", "Medium", "Medium", "High"]


@pytest.mark.requirement("C-024")
async def test_escalated_task_goes_before_younger_tasks_of_its_new_level(coscientist: Queue, clock: MovedClock) -> None:
    low = await submit(coscientist, LOW)
    await pass_time(coscientist, clock, 600)
    medium = await submit(coscientist, MEDIUM)
    high = await submit(coscientist, HIGH)
    assert await ids_in_order(coscientist) == [high, low, medium]


@pytest.mark.requirement("C-227", "C-228")
async def test_score_improves_by_a_tenth_per_minute_after_five_minutes(coscientist: Queue, clock: MovedClock) -> None:
    task_id = await submit(coscientist, MEDIUM)
    parts = []
    for step in (299, 1, 60, 60):
        clock.advance(step)
        parts.append((await coscientist.get(task_id)).priority_parts["percentage"])
    assert [abs(part) for part in parts] == [0, 0, 5, 10]
    assert (await coscientist.get(task_id)).effective_priority == MEDIUM - 10


@pytest.mark.requirement("C-131")
async def test_task_waiting_for_an_hour_is_first_of_the_high_level(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("escalation", [])
    starved = await submit(coscientist, LOW)
    await pass_time(coscientist, clock, 3599)
    high = await submit(coscientist, HIGH)
    assert (await coscientist.explain(starved)).position == 1
    await pass_time(coscientist, clock, 1)
    assert await ids_in_order(coscientist) == [starved, high]


@pytest.mark.requirement("C-229")
async def test_task_is_urgent_two_minutes_before_its_deadline(coscientist: Queue, clock: MovedClock) -> None:
    urgent = await submit(coscientist, LOW, deadline=clock() + 300)
    high = await submit(coscientist, HIGH)
    await pass_time(coscientist, clock, 179)
    assert (await coscientist.explain(high)).position == 0
    await pass_time(coscientist, clock, 2)
    assert await ids_in_order(coscientist) == [urgent, high]


@pytest.mark.requirement("L-005", "L-041", "L-145", "L-150")
async def test_loki_priorities_go_from_ten_down(loki: Queue) -> None:
    by_priority = {p: await submit(loki, (10 - p) * 10, "eng-backend") for p in (3, 9, 1, 10, 5)}
    assert await ids_in_order(loki) == [by_priority[p] for p in (10, 9, 5, 3, 1)]


async def test_loki_priorities_do_not_age(loki: Queue, clock: MovedClock) -> None:
    old = await submit(loki, 50, "eng-backend")
    await pass_time(loki, clock, 86_400)
    new = await submit(loki, 40, "eng-backend")
    assert await ids_in_order(loki) == [new, old]


@pytest.mark.parametrize("profile", ["redis", "aegis"])
async def test_redis_and_aegis_profiles_ignore_priority(queue: Queue, profile: str, clock: MovedClock) -> None:
    await queue.settings.use_profile(profile)
    submitted = []
    for number, priority in enumerate((90, 10, 50)):
        submitted.append(await submit(queue, priority, idempotency_key=str(number)))
        clock.advance(1)
    assert await ids_in_order(queue) == submitted


async def test_priority_order_holds_across_lanes(queue: Queue, clock: MovedClock) -> None:
    expected = []
    for priority, type_ in ((10, "a"), (20, "b"), (30, "a"), (40, "c"), (50, "b")):
        expected.append(await submit(queue, priority, type_))
    assert await ids_in_order(queue) == expected


async def test_changed_priority_changes_the_order(queue: Queue) -> None:
    first, second = await submit(queue), await submit(queue)
    await queue.tasks.update(second, {"priority": 10})
    assert [await finish(queue), await finish(queue)] == [second, first]


@pytest.mark.requirement("F-021", "F-114")
async def test_aging_rate_of_a_task_decides_its_place(factory: Queue, clock: MovedClock) -> None:
    fast = (await factory.submit(type="code", priority=60, priority_boost_per_minute=0.15)).id
    slow = (await factory.submit(type="code", priority=50, priority_boost_per_minute=0.05)).id
    await factory.settings.set("priority_boost_per_minute", 0.033)
    usual = (await factory.submit(type="code", priority=48)).id
    clock.advance(60 * 60)
    aged = [(await factory.get(id_)) for id_ in (fast, slow, usual)]
    assert [task.priority_boost_per_minute for task in aged] == [0.15, 0.05, 0.033]
    assert [task.priority_parts["age"] for task in aged] == pytest.approx([9, 3, 1.98])
    assert await ids_in_order(factory, "early") == [usual, slow, fast]


@pytest.mark.requirement("F-021")
async def test_faster_aging_task_overtakes_a_better_one(factory: Queue, clock: MovedClock) -> None:
    fast = (await factory.submit(type="code", priority=60, priority_boost_per_minute=0.15)).id
    slow = (await factory.submit(type="code", priority=50, priority_boost_per_minute=0.05)).id
    clock.advance(101 * 60)
    assert await ids_in_order(factory, "late") == [fast, slow]
