"""A process that stops in a transaction holds its locks until another process ends its session."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.store import postgres_open, postgres_sessions
from shiftwork.store.store import Tx
from tests.worker.steps import until

UNDER_WAY: list[asyncio.Task[str]] = []
Stop = Callable[[asyncpg.Connection], Awaitable[None]]


async def after_a_statement(connection: asyncpg.Connection) -> None:
    """Stop after the statement was sent, but not its values."""
    await connection.prepare("select $1::text")


async def in_a_copy(connection: asyncpg.Connection) -> None:
    """Stop in a COPY before its rows are sent."""

    async def none() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    UNDER_WAY.append(asyncio.create_task(connection.copy_to_table("alerts", source=none(), format="csv")))


@pytest.fixture
async def stopped(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncpg.Connection]:
    """A stopped session of a worker of the same fleet."""
    monkeypatch.setattr(postgres_sessions, "LOOK_EVERY_SEC", 0.2)
    name = postgres_sessions.session_name(postgres_url)
    connection = await asyncpg.connect(postgres_url, server_settings=name)
    yield connection
    connection.terminate()
    for task in UNDER_WAY:
        task.cancel()
    await asyncio.gather(*UNDER_WAY, return_exceptions=True)
    UNDER_WAY.clear()


@pytest.mark.parametrize("stop", [after_a_statement, in_a_copy])
async def test_lock_of_a_stopped_process_is_released(
    postgres_url: str, stop: Stop, stopped: asyncpg.Connection
) -> None:
    async with Queue.open(postgres_url) as queue:
        task = await queue.submit(type="code")
        await stopped.execute("begin; select * from tasks for update")
        await stop(stopped)
        await queue.cancel(task.id)
        assert (await queue.get(task.id)).status == "cancelled"
        await until(stopped.is_closed)


@pytest.mark.parametrize("stop", [after_a_statement, in_a_copy])
async def test_maintenance_of_a_stopped_process_is_done_by_others(
    postgres_url: str, stop: Stop, stopped: asyncpg.Connection
) -> None:
    """No process waits for this lock: a maintenance job that another process runs is skipped."""
    watcher = await asyncpg.connect(postgres_url)
    async with Queue.open(postgres_url) as queue:
        await run_once(queue.engine)
        await stopped.execute("begin; select * from duties where name = 'reclaim' for update")
        await stop(stopped)

        async def runs_again() -> bool:
            await run_once(queue.engine, force=True)
            return bool(await watcher.fetchval("select runs > 1 from duties where name = 'reclaim'"))

        assert not await runs_again()
        await until(runs_again)
    await watcher.close()


async def test_sessions_of_other_programs_are_left_alone(postgres_url: str, stopped: asyncpg.Connection) -> None:
    stranger = await asyncpg.connect(postgres_url, server_settings={"application_name": "psql"})
    async with Queue.open(postgres_url) as queue:
        for connection in (stranger, stopped):
            await connection.execute("begin")
            await after_a_statement(connection)
        await until(stopped.is_closed)
        assert await stranger.fetchval("select 1") == 1
        assert (await queue.status()).counts == {}
    await stranger.close()


async def test_session_blocking_a_call_is_logged_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_sessions, "LOOK_EVERY_SEC", 0.1)
    report, looks = postgres_sessions.Waits.tell, Counter[bool]()

    async def count(waits: postgres_sessions.Waits, connection: asyncpg.Connection, pids: list[int]) -> None:
        await report(waits, connection, pids)
        looks["for a lock of session" in caplog.text] += 1

    monkeypatch.setattr(postgres_sessions.Waits, "tell", count)
    stranger = await asyncpg.connect(postgres_url, server_settings={"application_name": "psql"})
    async with Queue.open(postgres_url) as queue:
        task = await queue.submit(type="code")
        await stranger.execute("begin; select * from tasks for update")
        cancelling = asyncio.create_task(queue.cancel(task.id))
        await until(lambda: looks[True] == 3)
        await stranger.execute("rollback")
        await cancelling
    (found,) = [record.getMessage() for record in caplog.records if "for a lock" in record.getMessage()]
    assert f"session {stranger.get_server_pid()} (psql, idle in transaction, " in found
    assert found.endswith("select * from tasks for update")
    await stranger.close()


async def test_call_that_waits_long_for_a_lock_releases_the_locks_it_holds(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a session of a stopped process would hold them while it waits, and then for as long again."""
    assert "lock_timeout" in postgres_open.SESSION
    monkeypatch.setitem(postgres_open.SESSION, "lock_timeout", "300ms")
    stranger = await asyncpg.connect(postgres_url, server_settings={"application_name": "psql"})
    await stranger.execute("select pg_advisory_lock(hashtextextended('second', 0))")

    async def lock(names: list[str], tx: Tx) -> None:
        for name in names:
            await tx.advisory_lock(name)

    async def waits() -> bool:
        return bool(await stranger.fetchval("select exists (select from pg_locks where not granted)"))

    async with Queue.open(postgres_url) as queue:
        both = asyncio.create_task(queue.engine.store.run(partial(lock, ["first", "second"])))
        await until(waits)
        await asyncio.wait_for(queue.engine.store.run(partial(lock, ["first"])), 20)
        assert not both.done()
        await stranger.execute("select pg_advisory_unlock_all()")
        await both
    await stranger.close()


async def test_copy_in_progress_is_not_ended(postgres_url: str, stopped: asyncpg.Connection) -> None:
    silence = postgres_sessions.SilentSessions()
    watcher = await asyncpg.connect(postgres_url, server_settings=postgres_sessions.session_name(postgres_url))
    await stopped.execute("create temporary table slow (n int)")
    rows: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def trickle() -> AsyncIterator[bytes]:
        while (row := await rows.get()) is not None:
            yield row

    copying = asyncio.create_task(stopped.copy_to_table("slow", source=trickle(), format="csv"))
    for number in range(1, 6):
        rows.put_nowait(b"1\n" * 50_000)
        await until(partial(has_read, watcher, 100_000 * number))
        await silence.end(watcher)
    rows.put_nowait(None)
    assert await copying == "COPY 250000"
    await watcher.close()


async def has_read(watcher: asyncpg.Connection, count: int) -> bool:
    """Return whether the server has read this many bytes and waits for more."""
    return [row[3] >= count for row in await watcher.fetch(postgres_sessions.WAITING)] == [True]
