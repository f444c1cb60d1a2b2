"""On PostgreSQL, maintenance rebuilds the indexes that keep the keys of removed rows."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import JOBS
from shiftwork.store.postgres_indexes import INDEXES, rebuild_grown
from tests.conformance.steps import sql

BATCH = "idx_events_batch"
SMALL = 100_000
"""Bytes from which an index is looked at here."""


@pytest.fixture
async def queue(postgres_url: str) -> AsyncIterator[Queue]:
    async with Queue.open(postgres_url) as opened:
        yield opened


@pytest.fixture
async def past_the_queue(postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def _outgrow(queue: Queue, past_the_queue: Any) -> int:
    """Add and remove the events of 6,000 tasks; return the size of the index, which then has no rows."""
    for _ in range(12):
        await queue.submit_many([{"type": "code"}] * 500)
    await past_the_queue.execute("delete from events")
    for _ in range(2):  # the first leaves emptied pages for the second
        await past_the_queue.execute("vacuum events")
    size: int = await past_the_queue.fetchval(f"select pg_relation_size('{BATCH}')")
    return size


async def test_index_of_event_batches_shrinks_again(queue: Queue, past_the_queue: Any) -> None:
    grown = await _outgrow(queue, past_the_queue)
    assert grown > SMALL, "vacuum removes the keys by itself: nobody needs to rebuild the index"
    assert await rebuild_grown(queue.engine.store, least=SMALL) == [BATCH]
    assert await past_the_queue.fetchval(f"select pg_relation_size('{BATCH}')") < grown / 4
    assert await rebuild_grown(queue.engine.store, least=SMALL) == []


async def test_rebuilt_index_finds_the_events_of_a_task(queue: Queue, past_the_queue: Any) -> None:
    await _outgrow(queue, past_the_queue)
    tasks = await queue.submit_many([{"type": "code"}] * 3)
    assert await rebuild_grown(queue.engine.store, least=SMALL) == [BATCH]
    assert [event.verb for event in (await queue.tasks.history(tasks[1].id)).events] == ["submitted"]
    await past_the_queue.execute("set enable_seqscan = off")
    plan = await past_the_queue.fetch("explain select 1 from events where task_ids @> array[gen_random_uuid()]")
    assert BATCH in "".join(row[0] for row in plan)


async def test_index_is_rebuilt_again_only_when_it_has_doubled(queue: Queue, past_the_queue: Any) -> None:
    size = await _outgrow(queue, past_the_queue)
    await past_the_queue.execute(f"comment on index {BATCH} is '{size - 8192} bytes after the last rebuild'")
    assert await rebuild_grown(queue.engine.store, least=SMALL) == []
    await past_the_queue.execute(f"comment on index {BATCH} is '{size // 2 - 8192} bytes after the last rebuild'")
    assert await rebuild_grown(queue.engine.store, least=SMALL) == [BATCH]


async def test_remains_of_an_interrupted_rebuild_are_dropped(queue: Queue, past_the_queue: Any) -> None:
    await _outgrow(queue, past_the_queue)
    await past_the_queue.execute(f"create index {BATCH}_ccnew on events using gin (task_ids)")
    await past_the_queue.execute(f"update pg_index set indisvalid = false where indexrelid = '{BATCH}_ccnew'::regclass")
    assert await rebuild_grown(queue.engine.store, least=SMALL) == [BATCH]
    assert await past_the_queue.fetchval(f"select to_regclass('{BATCH}_ccnew')") is None


async def test_one_process_rebuilds_at_a_time(queue: Queue, past_the_queue: Any) -> None:
    await _outgrow(queue, past_the_queue)
    assert await past_the_queue.fetchval("select pg_try_advisory_lock(hashtextextended('indexes', 0))")
    assert await rebuild_grown(queue.engine.store, least=SMALL) == []
    assert await past_the_queue.fetchval("select pg_advisory_unlock(hashtextextended('indexes', 0))")
    assert await rebuild_grown(queue.engine.store, least=SMALL) == [BATCH]


async def test_small_indexes_are_left_alone_by_the_job(queue: Queue) -> None:
    assert set(INDEXES) <= {row["indexname"] for row in await sql(queue, "select indexname from pg_indexes")}
    after = JOBS["indexes"].after
    assert after is not None
    assert await after(queue.engine) == {}
