"""An urgent task without a free agent: the least urgent running task is asked to yield, and loses no attempt."""

from typing import Any

import pytest

from shiftwork import Assignment, Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, pass_time_exactly, sql, take

LOW, MEDIUM, HIGH = 70, 50, 20


async def work_on(queue: Queue, agent: str, priority: float = LOW, **fields: Any) -> Assignment:
    """Start a task of an agent with a single slot."""
    await queue.agents.register(id=agent, max_concurrent_tasks=1)
    await queue.submit({"type": "code", "priority": priority, "payload": {"for": agent}, **fields})
    return await take(queue, agent)


async def urge(queue: Queue, clock: MovedClock, **fields: Any) -> str:
    """Submit a task with a near deadline, and run the maintenance jobs."""
    deadline = clock() + 60
    made = await queue.submit({"type": "code", "payload": {"urgent": deadline}, "deadline": deadline, **fields})
    await pass_time(queue, clock, 2)
    return made.id


async def emitted(queue: Queue, *held: Assignment) -> list[str]:
    return [(await queue.heartbeat(each.token)).action for each in held]


@pytest.mark.requirement("C-230")
async def test_lower_priority_task_yields_to_an_urgent_one(coscientist: Queue, clock: MovedClock) -> None:
    held = await work_on(coscientist, "worker")
    urgent = await urge(coscientist, clock)
    answer = await coscientist.heartbeat(held.token)
    assert (answer.action, answer.reason) == ("yield", f"{urgent} is urgent")
    await coscientist.release(held.token, "makes way")
    assert (await take(coscientist, "worker")).id == urgent
    given_back = await coscientist.get(held.id)
    assert (given_back.status, given_back.attempts) == ("ready", 0)
    assert await events_named(coscientist, "task.yield_asked") == [held.id]


@pytest.mark.requirement("C-230")
async def test_task_becoming_urgent_while_waiting_causes_preemption(coscientist: Queue, clock: MovedClock) -> None:
    held = await work_on(coscientist, "worker")
    await coscientist.submit(type="code", payload={"n": 1}, deadline=clock() + 190)
    await pass_time(coscientist, clock, 60)
    assert await emitted(coscientist, held) == ["continue"]
    await pass_time(coscientist, clock, 15)
    assert await emitted(coscientist, held) == ["yield"]


async def test_only_the_least_urgent_task_is_asked_to_yield_per_urgent_task(
    coscientist: Queue, clock: MovedClock
) -> None:
    held = [await work_on(coscientist, f"worker-{n}", priority) for n, priority in enumerate((LOW, MEDIUM, LOW + 5))]
    await urge(coscientist, clock)
    for _ in range(3):
        assert await emitted(coscientist, *held) == ["continue", "continue", "yield"]
        await pass_time(coscientist, clock, 2)
    await urge(coscientist, clock)
    assert await emitted(coscientist, *held) == ["yield", "continue", "yield"]


async def test_no_task_yields_while_an_able_agent_is_idle(coscientist: Queue, clock: MovedClock) -> None:
    held = await work_on(coscientist, "worker")
    await coscientist.agents.register(id="free", max_concurrent_tasks=1)
    await urge(coscientist, clock)
    assert await emitted(coscientist, held) == ["continue"]


async def test_agent_unable_to_take_urgent_task_is_not_asked_to_yield(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.agents.register(id="artist", types=["draw"], max_concurrent_tasks=1)
    await coscientist.submit(type="draw", priority=LOW)
    artist = await take(coscientist, "artist")
    coder = await work_on(coscientist, "coder", MEDIUM)
    await urge(coscientist, clock)
    assert await emitted(coscientist, artist, coder) == ["continue", "yield"]


async def test_more_urgent_or_at_most_once_tasks_do_not_yield(coscientist: Queue, clock: MovedClock) -> None:
    better = await work_on(coscientist, "high", HIGH)
    late = await work_on(coscientist, "late", LOW, deadline=clock() + 100)
    once = await work_on(coscientist, "once", LOW, delivery="at_most_once")
    await urge(coscientist, clock, priority=LOW)
    assert await emitted(coscientist, better, late, once) == ["continue"] * 3


async def test_yield_request_ends_when_urgent_task_is_claimed(coscientist: Queue, clock: MovedClock) -> None:
    held = await work_on(coscientist, "worker")
    urgent = await urge(coscientist, clock)
    assert await emitted(coscientist, held) == ["yield"]
    assert (await take(coscientist, "newcomer")).id == urgent
    await pass_time(coscientist, clock, 2)
    assert await emitted(coscientist, held) == ["continue"]
    assert await sql(coscientist, "select * from yields") == []


async def test_preemption_is_off_by_default(queue: Queue, clock: MovedClock) -> None:
    held = await work_on(queue, "worker")
    await urge(queue, clock)
    assert await emitted(queue, held) == ["continue"]
    await queue.settings.set("deadline.preempt_running", value=True, type="code")
    await pass_time_exactly(queue, clock, 2)
    assert await emitted(queue, held) == ["yield"]


async def test_runtime_heartbeat_returns_yield_requests(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.agents.register(id="worker", max_concurrent_tasks=1)
    await coscientist.submit(type="code", priority=LOW)
    held = await take(coscientist, "worker", runtime_id="machine")
    urgent = await urge(coscientist, clock)
    answer = await coscientist.runtimes.heartbeat("machine", [held.token])
    assert answer.yields == {held.token: f"{urgent} is urgent"}
    await coscientist.release(held.token)
    assert (await coscientist.runtimes.heartbeat("machine", [held.token])).yields == {}
