"""A copy is the same queue in another database: content, order, claims, numbers; all or nothing."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.model.errors import CopyDiffers, InputError, LeaseLost, ShiftworkError, StoreNotEmpty, StoreUnavailable
from shiftwork.observe import kept_counts
from shiftwork.snapshots import copy as copying
from shiftwork.snapshots.copy import checksum, copy
from shiftwork.snapshots.row_batches import BATCH_BYTES, MAX_COUNT, MIN_COUNT, BatchSize
from shiftwork.store.catalogue import DERIVED, OF_THE_STORE, tables
from shiftwork.store.open_store import open_store
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import change, finish, ids_in_order, sql, take
from tests.copying.filling import FILLED, fill
from tests.crashes.test_restart import tell

COLUMNS = {
    "sqlite": "select m.name as t, c.name as c from sqlite_master m, pragma_table_info(m.name) c"
    " where m.type = 'table' and m.name not like 'sqlite_%'",
    "postgresql": "select t.table_name as t, column_name as c from information_schema.tables t"
    " join information_schema.columns c using (table_schema, table_name)"
    " where table_schema = 'public' and table_type = 'BASE TABLE'",
}


SEVERAL_IN_ONE = {("events", name) for name in ("task_ids", "fences", "spans", "seqs", "size")}
"""Columns of rows that several events share in PostgreSQL: they are copied as single events."""


def _is_copied(table: str) -> bool:
    return table not in OF_THE_STORE and not table.startswith(DERIVED)


async def test_every_table_and_column_is_copied(queue: Queue) -> None:
    found = await sql(queue, COLUMNS[queue.url.partition(":")[0]])
    there = {(row["t"], row["c"]) for row in found if _is_copied(row["t"])}
    assert {(table.name, column) for table in tables() for column in table.names} == there - SEVERAL_IN_ONE


async def test_every_copied_column_has_the_type_it_has_in_postgres(postgres_url: str) -> None:
    """The types are read from what migrations write for SQLite: a plain `integer` there may be a boolean elsewhere."""
    text = "select table_name, column_name, data_type from information_schema.columns where table_schema = 'public'"
    connection = await asyncpg.connect(postgres_url)
    there = {tuple(row) for row in await connection.fetch(text)}
    await connection.close()
    named = {"int": "integer", "float": "double precision"}
    copied = {
        (table.name, name, "bigint" if name == table.number else named.get(kind, kind))
        for table in tables()
        for name, kind in table.columns
    }
    assert copied - there == set()


async def test_copy_makes_its_own_search_index(queue: Queue, clock: MovedClock, other_url: str) -> None:
    task_id = (await queue.submit(type="code", title="needle")).id
    await pass_time(queue, clock, 1)
    await copy(queue.url, other_url, verify=True)
    async with Queue.open(other_url, clock=clock) as other:
        assert [task.id for task in (await other.tasks.list(search="needle")).tasks] == [task_id]
        assert (await pass_time(other, clock, 1))["search"] == {"indexed": 1}
        await other.submit_many([{"type": "code"}] * 3)
        assert [task.id for task in (await other.tasks.list(search="needle")).tasks] == [task_id]
        assert (await other.get(task_id[-8:])).id == task_id


async def test_every_numbered_table_is_known(queue: Queue) -> None:
    if queue.url.startswith("sqlite"):
        text = "select name as t from sqlite_master where sql like '%autoincrement%'"
    else:
        text = "select table_name as t from information_schema.columns where is_identity = 'YES'"
    numbered = {row["t"] for row in await sql(queue, text) if _is_copied(row["t"])}
    assert numbered == {table.name for table in tables() if table.number}


async def test_copy_contains_everything_of_the_queue(
    queue: Queue, clock: MovedClock, other_url: str, tmp_path: Path
) -> None:
    await fill(queue, clock)
    copied = await copy(queue.url, other_url, verify=True)
    assert FILLED - copied.counts.keys() == set()
    assert await checksum(other_url) == copied == await checksum(queue.url)
    assert await copy(other_url, f"sqlite:///{tmp_path}/third.db") == copied
    workspaces = [row["name"] for row in await sql(queue, "select name from workspaces")]
    async with Queue.open(other_url, clock=clock) as other:
        for name in workspaces:
            here, there = queue.in_workspace(name), other.in_workspace(name)
            assert await tell(there) == await tell(here)
            assert await there.events(limit=10_000) == await here.events(limit=10_000)
            assert await there.settings.list() == await here.settings.list()


async def test_work_continues_in_the_copy(queue: Queue, clock: MovedClock, other_url: str) -> None:
    for priority in (50, 10, 90, 0, 30):
        await queue.submit(type="code", priority=priority)
    held = await take(queue, "old")
    late = await take(queue, "late")
    await queue.release(late.token)
    await copy(queue.url, other_url)
    newest = (await queue.events("now")).next
    async with Queue.open(other_url, clock=clock) as other:
        assert await ids_in_order(other) == await ids_in_order(queue)
        with pytest.raises(LeaseLost):
            await other.complete(late.token)
        await other.complete(held.token, {"answer": 42})
        assert (await other.get(held.id)).status == "completed"
        assert (await other.events("now")).next > newest
        assert (await other.submit(type="code")).status == "ready"


async def test_event_numbers_continue_after_deleted_rows(queue: Queue, clock: MovedClock, other_url: str) -> None:
    """Followers have the last number, even if its row was deleted."""
    await queue.submit_many([{"type": "code"}] * 3)
    newest = (await queue.events("now")).next

    async def forget(tx: object) -> None:
        text = f"delete from events where seq = {newest}"
        connection = tx._connection  # type: ignore[attr-defined]  # as someone with SQL might
        done = connection.execute(text)
        if not queue.url.startswith("sqlite"):
            await done

    await queue.engine.store.run(forget)
    await copy(queue.url, other_url)
    async with Queue.open(other_url, clock=clock) as other:
        await other.submit(type="code")
        assert (await other.events("now")).next == newest + 1


async def test_heartbeat_timeout_restarts_with_the_copy(queue: Queue, clock: MovedClock, other_url: str) -> None:
    """As after an outage, agents that send a heartbeat within one timeout keep their tasks."""
    await queue.submit_many([{"type": "code", "timeout_sec": 86_400}] * 2)
    beating, silent = await take(queue, "beating"), await take(queue, "silent")
    clock.advance(600)
    await _copy_at(clock, queue.url, other_url)
    async with Queue.open(other_url, clock=clock) as other:
        await pass_time(other, clock, 1)
        assert {(await other.get(held.id)).status for held in (beating, silent)} == {"running"}
        assert (await other.heartbeat(beating.token)).action == "continue"
        await pass_time(other, clock, 88)
        assert (await other.get(silent.id)).status == "running"
        assert (await other.heartbeat(beating.token)).action == "continue"
        await pass_time(other, clock, 2)
        assert (await other.get(silent.id)).status == "retrying"
        await other.complete(beating.token)


async def _copy_at(clock: MovedClock, source: str, target: str) -> None:
    """With the moved clock as the time of both stores."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "open_store", lambda url: open_store(url, clock=clock))
        await copy(source, target)


async def test_writes_during_the_copy_are_not_in_it(queue: Queue, other_url: str) -> None:
    await queue.submit_many([{"type": "code"}] * 50)
    before = await checksum(queue.url)
    changes: list[asyncio.Task[object]] = []

    def change(_table: str, _rows: int) -> None:
        changes.append(asyncio.create_task(queue.submit(type="late")))

    assert await copy(queue.url, other_url, progress=change) == before
    await asyncio.gather(*changes)
    assert (await queue.status()).counts == {"ready": 50 + len(changes)}


async def test_target_with_tasks_is_refused_and_unchanged(queue: Queue, other_url: str) -> None:
    await queue.submit(type="code")
    async with Queue.open(other_url) as other:
        await other.submit(type="docs")
        before = await checksum(other_url)
        with pytest.raises(StoreNotEmpty) as refused:
            await copy(queue.url, other_url)
        assert refused.value.code == "store_not_empty"
        assert await checksum(other_url) == before


async def test_target_that_was_only_opened_counts_as_empty(queue: Queue, other_url: str, clock: MovedClock) -> None:
    await queue.submit(type="code")
    async with Queue.open(other_url, clock=clock, workspace="other", profile="loki") as other:
        await pass_time(other, clock, 1)
    copied = await copy(queue.url, other_url)
    assert copied.counts["workspaces"] == 1
    assert await checksum(other_url) == copied


async def test_copy_without_a_source_is_refused(tmp_path: Path, other_url: str) -> None:
    with pytest.raises(StoreUnavailable):
        await copy(f"sqlite:///{tmp_path}/nothing.db", other_url)
    with pytest.raises(InputError):
        await copy("sqlite://:memory:", other_url)
    with pytest.raises(ShiftworkError):  # there is no queue there
        await copy(other_url, f"sqlite:///{tmp_path}/third.db")
    await (await Queue.open(other_url)).close()
    with pytest.raises(InputError):
        await copy(other_url, "mysql://localhost/queue")


async def test_queue_of_another_schema_is_refused(queue: Queue, tmp_path: Path) -> None:
    text = "insert into migrations values (9999, 'later', 'x')"
    if queue.url.startswith("sqlite"):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        connection.execute(text)
        connection.close()
    else:
        server = await asyncpg.connect(queue.url)
        await server.execute(text)
        await server.close()
    with pytest.raises(ShiftworkError) as refused:
        await copy(queue.url, f"sqlite:///{tmp_path}/other.db")
    assert refused.value.code == "store_newer"


async def test_copy_that_differs_is_not_kept(queue: Queue, tmp_path: Path) -> None:
    """A database that changes its input: here by a trigger."""
    await queue.submit(type="code")
    other = f"sqlite:///{tmp_path}/other.db"
    await (await Queue.open(other)).close()
    connection = apsw.Connection(f"{tmp_path}/other.db")
    connection.execute(
        "create trigger t after insert on bodies begin update bodies set body = '{}' where task_id = new.task_id; end"
    )
    with pytest.raises(CopyDiffers) as refused:
        await copy(queue.url, other, verify=True)
    assert "the copy has different rows" in refused.value.what
    assert list(connection.execute("select count(*) from tasks")) == [(0,)]
    connection.close()


async def kill_in_the_middle(*what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.copying.stopper", *what, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"stopped"
    process.kill()
    await process.wait()


async def test_killed_copy_leaves_nothing_and_can_be_repeated(queue: Queue, other_url: str) -> None:
    await queue.submit_many([{"type": "code"}] * 20)
    await kill_in_the_middle("copy", queue.url, other_url)
    async with Queue.open(other_url) as other:
        assert (await other.status()).counts == {}
    assert (await copy(queue.url, other_url)).counts["tasks"] == 20
    assert await checksum(other_url) == await checksum(queue.url)


def test_batches_are_about_a_mebibyte_for_any_row_size() -> None:
    pace = BatchSize()
    assert pace.rows == MIN_COUNT
    for _ in range(20):
        pace.adapt([b"x" * 100] * pace.rows)
    assert pace.rows == MAX_COUNT
    pace.adapt([b"x" * 8 * BATCH_BYTES] * MAX_COUNT)
    assert pace.rows == 1
    pace.adapt([b"x" * 100])
    assert pace.rows == 2


async def test_copy_into_a_counted_empty_queue_is_counted_again(
    queue: Queue, clock: MovedClock, other_url: str
) -> None:
    async with Queue.open(other_url, clock=clock) as other:
        await pass_time(other, clock, 1)  # its jobs say that it has no finished task
    await queue.submit_many([{"type": "code"}] * 3)
    await finish(queue)
    await pass_time(queue, clock, 1)
    await change(queue, "delete from events")  # as retention does
    await copy(queue.url, other_url, verify=True)
    async with Queue.open(other_url, clock=clock) as other:
        for _ in range(2):
            assert (await other.status(fresh=True)).counts == {"ready": 2, "completed": 1}
            await pass_time(other, clock, 1)
        assert await other.engine.store.read(lambda tx: kept_counts.read(tx, "default")) is not None
