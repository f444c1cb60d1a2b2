"""SQL access: the documented names of tables, views, indexes and the channel, on each store."""

import asyncio
from typing import Any

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model import ids
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, sql, take


async def select(queue: Queue, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in await sql(queue, query)]


def on_sqlite(queue: Queue) -> bool:
    return queue.url.startswith("sqlite")


async def some_of_each(queue: Queue) -> None:
    """One task in every state but the passing ones."""
    await queue.agents.register(id="worker", max_concurrent_tasks=None)
    await queue.submit(type="code", id="completed")
    await finish(queue)
    await queue.submit(type="code", id="dead", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash", "boom")
    await queue.submit(type="code", id="retrying")
    await queue.fail((await take(queue)).token, "crash")
    await queue.submit(type="code", id="running", title="Now")
    await take(queue)
    await queue.submit(type="code", id="claimed")
    await queue.claim("worker")
    await queue.submit(type="code", id="cancelled")
    await queue.cancel("cancelled")
    await queue.submit(type="code", id="ready")
    await queue.submit(type="code", id="pending", dependencies=["ready"])


@pytest.mark.requirement("F-238", "F-271")
async def test_tasks_can_be_selected_by_status(queue: Queue) -> None:
    await some_of_each(queue)
    rows = await select(queue, "select external_id, status from tasks order by id")
    assert dict(rows) == {
        "completed": "completed",
        "dead": "dead_lettered",
        "retrying": "retrying",
        "running": "running",
        "claimed": "claimed",
        "cancelled": "cancelled",
        "ready": "ready",
        "pending": "pending",
    }
    assert await select(queue, "select external_id from tasks where status = 'running'") == [("running",)]


@pytest.mark.requirement("F-248")
async def test_factory_query_runs_as_documented(queue: Queue) -> None:
    await some_of_each(queue)
    if on_sqlite(queue):
        rows = await select(queue, "SELECT title, claim_agent_id FROM factory_tasks WHERE status = 'RUNNING'")
    else:
        client = await asyncpg.connect(queue.url, server_settings={"search_path": "factory"})
        found = await client.fetch("SELECT * FROM tasks WHERE status = 'RUNNING'")
        await client.close()
        rows = [(row["title"], row["claim_agent_id"]) for row in found]
    assert rows == [("Now", "worker")]


async def test_aegis_view_has_six_statuses(queue: Queue) -> None:
    await some_of_each(queue)
    rows = await select(queue, "select status, count(*) from agent_task_queue group by status")
    expected = {"completed": 1, "failed": 1, "queued": 3, "running": 1, "dispatched": 1, "cancelled": 1}
    assert dict(rows) == expected


@pytest.mark.parametrize(
    ("result", "output"),
    [({"text": "hello"}, "hello"), ({"data": "said", "text": "hello"}, "said"), ({}, None)],
    ids=["words", "data and words", "nothing"],
)
async def test_aegis_view_shows_text_when_result_has_no_data(
    queue: Queue, result: dict[str, Any], output: str | None
) -> None:
    await queue.submit(type="code")
    await queue.complete((await take(queue)).token, **result)
    assert await select(queue, "select output from agent_task_queue") == [(output,)]


async def test_event_log_has_names_of_the_stream_protocol(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", max_attempts=2, retry={"jitter": False})
    for _ in range(2):
        await queue.fail((await take(queue)).token, "crash")
        await pass_time(queue, clock, 10)
    await queue.submit(type="code")
    await finish(queue)
    rows = await select(queue, "select event_type, final from event_log order by id, event_type")
    assert [(name, None if final is None else bool(final)) for name, final in rows] == [
        ("task.created", None),
        ("task.claimed", None),
        ("task.failed", False),
        ("task.claimed", None),
        ("task.dlq", None),
        ("task.failed", True),
        ("task.created", None),
        ("task.claimed", None),
        ("task.succeeded", None),
    ]


@pytest.mark.requirement("F-245", "F-246")
async def test_documented_indexes_exist_under_their_names(queue: Queue) -> None:
    table = "sqlite_master" if on_sqlite(queue) else "pg_indexes"
    name, definition = ("name", "sql") if on_sqlite(queue) else ("indexname", "indexdef")
    rows = await select(queue, f"select {name}, {definition} from {table} where {name} like 'idx_task%'")
    found = {name: definition.lower() for name, definition in rows}
    assert "(lane, rank, ordered_at, id)" in found["idx_tasks_claimable"]
    assert "'ready'" in found["idx_tasks_claimable"].partition("where")[2]
    assert "(dag_id, status)" in found["idx_tasks_dag"]
    assert "(lease_check_at)" in found["idx_tasks_heartbeat"]
    assert "'claimed'" in found["idx_tasks_heartbeat"].partition("where")[2]
    assert "'running'" in found["idx_tasks_heartbeat"].partition("where")[2]
    assert "(available_at)" in found["idx_tasks_retry"]
    assert "'retrying'" in found["idx_tasks_retry"].partition("where")[2]
    assert {"idx_task_queue_status", "idx_task_queue_agent", "idx_task_queue_issue"} <= found.keys()


async def test_idempotency_key_is_unique_in_the_database(queue: Queue) -> None:
    await queue.submit(type="code", idempotency_key="k")
    insert = "insert into keys (workspace, key, task_id) select workspace, key, task_id from keys"
    if on_sqlite(queue):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        with pytest.raises(apsw.ConstraintError):
            connection.execute(insert)
        connection.close()
        return
    with pytest.raises(asyncpg.UniqueViolationError):
        await select(queue, insert)


@pytest.mark.requirement("F-160")
async def test_new_task_notifies_the_task_ready_channel(postgres_dsn: str) -> None:
    heard = asyncio.Event()
    client = await asyncpg.connect(postgres_dsn)
    await client.add_listener("task_ready", lambda *_: heard.set())
    async with Queue.open(postgres_dsn) as queue:
        await queue.submit(type="code")
        await asyncio.wait_for(heard.wait(), 30)
    await client.close()


async def test_submit_by_a_short_lived_process_is_notified(postgres_url: str) -> None:
    """A command exits right after the submit; without a notification, agents would find the task only by polling."""
    heard: list[str] = []
    client = await asyncpg.connect(postgres_url)
    await client.add_listener("task_ready", lambda *found: heard.append(str(found[-1])))
    for number in range(1, 6):
        async with Queue.open(postgres_url) as queue:
            await queue.submit(type="code")
        await client.execute("select 1")  # what was told before has come with its answer
        assert len(heard) == number
    await client.close()


async def test_event_log_uses_the_same_task_ids_as_the_views(queue: Queue) -> None:
    own = await queue.submit(type="tool", id="order-7")
    plain = [(await queue.submit(type="tool")).id for _ in range(20)]
    rows = await select(queue, "select task_id, task_uuid from event_log where event_type = 'task.created' order by id")
    assert [task_id for task_id, _ in rows] == ["order-7", *plain]
    assert [ids.show_task(str(uuid)) for _, uuid in rows] == [own.id, *plain]
    (found,) = await select(queue, f"select event_type from event_log where task_id = '{plain[3]}'")
    assert found == ("task.created",)


async def test_aegis_view_shows_agent_text_as_output(queue: Queue) -> None:
    await queue.submit(type="agent")
    (claim,) = await queue.claim("a1", start=True)
    await queue.complete(claim.token, text="all tests pass")
    assert await select(queue, "select output from agent_task_queue") == [("all tests pass",)]
