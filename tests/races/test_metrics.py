"""Meters under real concurrency: each event is counted once, by any process and in any order of commits."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.observe import maintenance, meters

TASKS = 120


async def stored(queue: Queue, name: str) -> float:
    """Return the stored meters."""
    rows = await queue.engine.store.read(lambda tx: tx.all("read_meters", workspace="default"))
    return sum(float(row["value"]) for row in rows if row["name"] == name)


async def count(queue: Queue) -> None:
    await queue.engine.store.run(meters.mark_seen)
    await maintenance.count(queue.engine.store)


async def test_concurrent_counting_counts_each_event_once(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "STRETCH", 7)
    queues = [await Queue.open(store_url) for _ in range(4)]

    async def work(queue: Queue, name: str) -> None:
        for _ in range(TASKS // 2):
            await queue.submit(type="code", target_agent_id=name)
            (held,) = await queue.claim(name, start=True)
            await queue.complete(held.token)

    async def keep_counting(queue: Queue, done: asyncio.Event) -> None:
        while not done.is_set():
            await run_once(queue.engine, force=True)

    async def all_work(done: asyncio.Event) -> None:
        await asyncio.gather(work(queues[0], "ada"), work(queues[1], "bob"))
        done.set()

    done = asyncio.Event()
    try:
        await asyncio.gather(all_work(done), keep_counting(queues[2], done), keep_counting(queues[3], done))
        found = await queues[0].metrics.read()
        assert found.value("tasks_completed_total", type="code") == TASKS
        assert found.value("shiftwork_wait_seconds_count", type="code") == TASKS
        await count(queues[0])
        assert await stored(queues[0], "tasks_completed_total") == TASKS
        assert await stored(queues[0], "shiftwork_tasks_created_total") == TASKS
    finally:
        for queue in queues:
            await queue.close()


async def test_late_commit_is_counted(postgres_dsn: str) -> None:
    """Its number is lower than those committed and counted before it."""
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit(type="code")
        await count(queue)
        late = await asyncpg.connect(postgres_dsn)
        try:
            transaction = late.transaction()
            await transaction.start()
            columns = "at, workspace, task_id, verb, actor"
            await late.execute(f"insert into events ({columns}) select {columns} from events limit 1")
            await queue.submit(type="code")
            await count(queue)
            await count(queue)
            assert await stored(queue, "shiftwork_tasks_created_total") == 1  # it waits for the one under way
            assert (await queue.metrics.read()).value("shiftwork_tasks_created_total", type="code") == 2
            await transaction.commit()
            await count(queue)
            assert await stored(queue, "shiftwork_tasks_created_total") == 3
        finally:
            await late.close()


async def test_rolled_back_event_number_does_not_stop_counting(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit(type="code")
        other = await asyncpg.connect(postgres_dsn)
        try:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(
                "insert into events (at, workspace, verb, actor) values (0, 'default', 'submitted', 'nobody')"
            )
            await queue.submit(type="code")
            await count(queue)
            await transaction.rollback()
            await queue.submit(type="code")
            await count(queue)
            assert await stored(queue, "shiftwork_tasks_created_total") == 3
        finally:
            await other.close()
