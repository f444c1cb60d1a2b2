"""Which waiters a commit wakes on SQLite, where other processes are noticed through the file."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shiftwork import Queue
from tests.worker.steps import until

EVERYBODY: frozenset[int] = frozenset()


@asynccontextmanager
async def hearing(queue: Queue) -> AsyncIterator[list[frozenset[int]]]:
    """Return the wake-ups of waiters in this process, except the first one, which covers earlier changes."""
    heard: list[frozenset[int]] = []

    async def hear() -> None:
        async with queue.engine.store.lane_wakes() as wakes:
            while True:
                heard.append(await anext(wakes))

    task = asyncio.create_task(hear())
    await asyncio.sleep(0)
    while not heard:
        await queue.submit(type="noop")
    heard.clear()
    yield heard
    task.cancel()


async def test_own_commit_wakes_only_the_lanes_it_touched(tmp_path: Path) -> None:
    """With 200 waiting claims, each task would otherwise cause 200 claims."""
    async with Queue.open(f"sqlite:///{tmp_path}/q.db") as queue, hearing(queue) as heard:
        for number in range(1, 201):
            await queue.submit(type="noop")
            await until(lambda number=number: len(heard) >= number)  # type: ignore[misc]  # mypy cannot type the default
        assert EVERYBODY not in heard


async def test_commit_of_another_process_wakes_all_waiters(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    async with Queue.open(url) as ours, await Queue.open(url) as theirs, hearing(ours) as heard:
        await theirs.submit(type="noop")
        await until(lambda: EVERYBODY in heard)


async def test_commit_of_another_process_without_new_work_wakes_no_waiter(tmp_path: Path) -> None:
    """Heartbeats, claims and results of a fleet would otherwise wake every waiter."""
    url = f"sqlite:///{tmp_path}/q.db"
    async with Queue.open(url) as ours, await Queue.open(url) as theirs, hearing(ours) as heard:
        held = await theirs.claim("worker", start=True)
        assert held
        await theirs.heartbeat(held[0].token)
        await theirs.complete(held[0].token, 1)
        await theirs.submit(type="noop")
        await until(lambda: heard != [])
        assert heard == [EVERYBODY]
