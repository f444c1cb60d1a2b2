"""Regressions found in design trials that need no second connection."""

import asyncio

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.races.fleet import Stop, handles, stranded, take_all


async def test_tasks_of_equal_rank_are_claimed_in_creation_order(queue: Queue, clock: MovedClock) -> None:
    names = ["zebra", "ffffffff-0000-7000-8000-000000000001", "apple", "00000000-0000-7000-8000-000000000001"]
    for name in names:
        await queue.submit(type="code", id=name)
        clock.advance(0.001)
    made = [(await queue.get(name)).id for name in names]
    assert [taken.id for taken in await take_all(queue, "worker", 4)] == made


async def test_child_is_unblocked_by_any_completing_row_of_its_parent(queue: Queue, clock: MovedClock) -> None:
    """Retried as new tasks, twice: no edge is changed, and the child waits for the lineage."""
    parent = await queue.submit(type="code", retry={"mode": "new_task", "strategy": "immediate"})
    child = await queue.submit(type="docs", dependencies=[parent.id])
    for _ in range(2):
        (taken,) = await queue.claim("worker", start=True)
        await queue.fail(taken.token, "crash")
        assert (await queue.get(child.id)).status == "pending"
    (last,) = await queue.claim("worker", start=True)
    await queue.complete(last.token)
    assert (await queue.get(child.id)).status == "ready"
    assert await stranded(queue) == []


async def test_task_ends_once_per_review_round(queue: Queue, clock: MovedClock) -> None:
    """Dead-lettered, reviewed, dead-lettered again, reviewed and completed: three rounds, three ends, one final."""
    task = await queue.submit(type="code", max_attempts=1)
    for _ in range(2):
        (taken,) = await queue.claim("worker", start=True)
        assert (await queue.fail(taken.token, "crash")).status == "dead_lettered"
        await queue.dead_letters.review(task.id, "retry")
    (taken,) = await queue.claim("worker", start=True)
    await queue.complete(taken.token)
    await queue.complete(taken.token)
    events = (await queue.tasks.history(task.id)).events
    ends = [event.path[-1] for event in events if event.path and event.verb in {"failed", "completed"}]
    assert ends == ["dead_lettered", "dead_lettered", "completed"]
    assert (await queue.get(task.id)).round == 3


async def test_silence_is_measured_from_the_latest_runtime_heartbeat(queue: Queue, clock: MovedClock) -> None:
    """One write counts as heartbeat for all claims of a process."""
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.agents.register(id="agent", max_concurrent_tasks=None)
    taken = await queue.claim("agent", 3, start=True, runtime_id="machine")
    for _ in range(5):
        await pass_time(queue, clock, 60)
        answer = await queue.runtimes.heartbeat("machine", [assignment.token for assignment in taken])
        assert (answer.cancel, answer.lost) == ({}, [])
    assert (await queue.status()).counts == {"running": 3}
    await pass_time(queue, clock, 91)
    assert (await queue.status()).counts == {"retrying": 3}


async def test_claim_whose_caller_was_cancelled_during_it_is_released(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (claimer, other):
        task = await other.submit(type="code")
        stop = Stop(claimer, "claim_tasks")
        claiming = asyncio.create_task(claimer.claim("gone"))
        await stop.wait()
        claiming.cancel()
        stop.resume()
        (taken,) = await other.claim("here", wait=20)
        assert taken.id == task.id
        assert (await other.get(task.id)).attempts == 0
