"""A queue that is closed and opened again by a new process is the same queue."""

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.races.fleet import handles, hire


async def tell(queue: Queue) -> tuple[object, ...]:
    """Everything a reader can see of tasks, agents, dead letters and history."""
    tasks = (await queue.tasks.list()).tasks
    history = [await queue.tasks.history(task.id) for task in tasks]
    return tasks, await queue.agents.list(), await queue.dead_letters.list(), history, await queue.status()


@pytest.mark.requirement("C-093", "C-141", "F-224")
async def test_tasks_agents_and_dead_letters_survive_a_restart(store_url: str, clock: MovedClock) -> None:
    async with Queue.open(store_url, clock=clock) as queue:
        made = await queue.submit_many([{"type": "code", "max_attempts": 1 + n % 2} for n in range(10)])
        await queue.submit(type="docs", dependencies=[made[9].id])
        await hire(queue, "worker")
        first, second, started, ended, _ = await queue.claim("worker", 5)
        await queue.batch.start([a.token for a in (first, second, started, ended)])
        await queue.fail(first.token, "crash")  # its last attempt
        await queue.fail(second.token, "crash")
        await queue.complete(ended.token, {"answer": 42})
        before = await tell(queue)
    async with Queue.open(store_url, clock=clock) as again:
        assert await tell(again) == before
        assert (await again.get(started.id)).started_at == clock()
        counts = {"ready": 5, "claimed": 1, "running": 1, "completed": 1, "retrying": 1, "dead_lettered": 1}
        assert (await again.status()).counts == counts | {"pending": 1}


@pytest.mark.requirement("C-094")
async def test_claim_order_is_the_same_after_a_restart(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 1, clock=clock) as (queue,):
        for priority in (50, 10, 90, 0, 50, 30):
            await queue.submit(type="code", priority=priority)
            clock.advance(1)
        await hire(queue, "worker")
        taken = await queue.claim("worker", 6)
        await queue.batch.release([assignment.token for assignment in taken])
    async with handles(store_url, 1, clock=clock) as (again,):
        assert [a.id for a in await again.claim("worker", 6)] == [a.id for a in taken]
        assert [a.task().priority for a in taken] == [0, 10, 30, 50, 50, 90]
