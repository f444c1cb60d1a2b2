"""On PostgreSQL, one call that does the same to many tasks writes one row of events; readers see single events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.engine import event_log
from shiftwork.store import statements
from shiftwork.store.postgres_open import SESSION
from tests.conformance.steps import sql

ROWS = (
    "select verb, size, cardinality(task_ids) as tasks, seqs is null as follow from events where seq > 1 order by seq"
)
"""All but the first, which is the registration of the agent."""


@pytest.fixture
async def postgres_queue(postgres_url: str) -> AsyncIterator[Queue]:
    async with Queue.open(postgres_url) as opened:
        yield opened


async def _work_off(queue: Queue, count: int) -> list[str]:
    await queue.agents.register(id="coder", max_concurrent_tasks=count)
    tasks = await queue.submit_many([{"type": "code"}] * count)
    assignments = await queue.claim("coder", count, start=True)
    await queue.batch.complete([{"token": assignment.token, "data": 1} for assignment in assignments])
    return [task.id for task in tasks]


async def test_call_of_many_tasks_writes_one_row_of_events(postgres_queue: Queue) -> None:
    await _work_off(postgres_queue, 5)
    found = [(row["verb"], row["size"], row["tasks"], row["follow"]) for row in await sql(postgres_queue, ROWS)]
    assert found == [(verb, 5, 5, True) for verb in ("submitted", "claimed", "completed")]


async def test_single_events_of_a_batch_have_numbers_of_their_own(postgres_queue: Queue) -> None:
    tasks = await _work_off(postgres_queue, 5)
    seen, after = [], 1
    while (page := await postgres_queue.events(after=after, limit=2)).events:
        assert len(page.events) <= 2
        seen += page.events
        after = page.next
    assert [event.seq for event in seen] == list(range(2, 17))
    assert [event.verb for event in seen] == ["submitted"] * 5 + ["claimed"] * 5 + ["completed"] * 5
    assert [event.task_id for event in seen[:5]] == tasks
    assert {event.fence for event in seen[5:]} == {1}
    assert {event.dag_id for event in seen} == {f"dag_{task.removeprefix('task_')}" for task in tasks}


async def test_history_of_a_task_finds_events_in_shared_rows(postgres_queue: Queue) -> None:
    tasks = await _work_off(postgres_queue, 5)
    history = await postgres_queue.tasks.history(tasks[3])
    assert [(event.seq, event.verb, event.fence) for event in history.events] == [
        (5, "submitted", None),
        (10, "claimed", 1),
        (15, "completed", 1),
    ]
    assert [move.to_status for move in history.transitions][-3:] == ["running", "validating", "completed"]


async def test_row_keeps_numbers_that_do_not_follow_each_other(postgres_queue: Queue) -> None:
    """Another transaction takes numbers in between: sequences count by three, as if two others wrote all the time."""
    async with _counting_by(postgres_queue, 3):
        tasks = await _work_off(postgres_queue, 3)
    found = await sql(postgres_queue, "select seqs from events where seq > 1 order by seq")
    assert [list(row["seqs"]) for row in found] == [[4, 7, 10], [13, 16, 19], [22, 25, 28]]
    part = await event_log.read(postgres_queue.engine.store, 7, 3)
    assert [row["seq"] for row in part.rows] == [10, 13, 16]
    assert [event.seq for event in (await postgres_queue.tasks.history(tasks[1])).events] == [7, 16, 25]


async def test_numbers_that_lie_far_apart_get_a_row_each(postgres_queue: Queue) -> None:
    async with _counting_by(postgres_queue, 3000):
        tasks = await _work_off(postgres_queue, 3)
    found = await sql(postgres_queue, "select seq, task_id, task_ids from events where verb = 'submitted' order by seq")
    assert [(row["seq"], row["task_ids"]) for row in found] == [(3001, None), (6001, None), (9001, None)]
    assert len((await postgres_queue.tasks.history(tasks[2])).events) == 3


@asynccontextmanager
async def _counting_by(queue: Queue, step: int) -> AsyncIterator[None]:
    connection = await asyncpg.connect(queue.url)
    try:
        await connection.execute(f"alter table events alter column seq set increment by {step}")
        yield
        await connection.execute("alter table events alter column seq set increment by 1")
    finally:
        await connection.close()


EAGER = dict.fromkeys(
    ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size", "min_parallel_index_scan_size"), "0"
)


async def test_history_of_a_task_starts_no_parallel_workers(postgres_url: str) -> None:
    """Also where the planner, which does not know how few rows these are, would find them cheap."""
    async with Queue.open(postgres_url) as queue:
        for _ in range(20):
            await queue.submit_many([{"type": "code"}] * 100)
    connection = await asyncpg.connect(postgres_url, server_settings={**SESSION, **EAGER})
    try:
        await connection.execute("analyze events")
        await connection.execute(f"prepare history as {statements.load('postgres')['events_of_task'].text}")
        execute = "explain execute history (gen_random_uuid(), 0, 100)"
        plan = "\n".join(row[0] for row in await connection.fetch(execute))
        assert "idx_events_batch" in plan
        assert "Parallel" not in plan
    finally:
        await connection.close()
