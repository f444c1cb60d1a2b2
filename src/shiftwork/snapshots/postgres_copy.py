"""A queue in PostgreSQL as one end of a copy: one transaction, read through cursors or written by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import msgspec

from shiftwork.model.errors import StoreNotEmpty
from shiftwork.snapshots.batches import Batch, BatchSize, Schema, in_thread, pack
from shiftwork.store import migrate
from shiftwork.store.catalogue import SHARED_TABLES, Table, tables
from shiftwork.store.postgres_errors import translate
from shiftwork.store.postgres_growth import tell_planner
from shiftwork.store.postgres_opening import split_url

_PATIENT = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[PostgresEnd]:
    """The queue as it is at this moment."""
    async with _connected(url) as connection:
        with _translated():
            end = await _begin_reading(connection)
        yield end


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[PostgresEnd]:
    """An empty queue; what is written is there when the block ends without an error, and else nothing of it."""
    async with _connected(url) as connection:
        with _translated():
            end = await _begin_writing(connection)
        yield end
        with _translated():
            await tell_planner(connection, {table.name: 0 for table in tables()})
            await connection.execute("commit")


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    with _translated():
        # No statement is kept on the server: a pooler may hand the connection on.
        # Under another name, as no one may end it while its other end is slow.
        name = {"application_name": "shiftwork copy"}
        connection = await asyncpg.connect(split_url(url)[0], timeout=10, statement_cache_size=0, server_settings=name)
    try:
        yield connection
    finally:
        connection.terminate()  # ends a transaction that was not committed, whatever state it is in


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error) from error


async def _begin_reading(connection: Any) -> PostgresEnd:
    await connection.execute(f"begin isolation level repeatable read read only; {_PATIENT}")
    found = await connection.fetch("select number, name, checksum from migrations order by number")
    schema = tuple((row["number"], row["name"], row["checksum"]) for row in found)
    migrate.refuse_unmigrated(migrate.missing("postgres", schema))
    return PostgresEnd(connection, schema, await _numbers(connection))


async def _begin_writing(connection: Any) -> PostgresEnd:
    await connection.execute(f"begin; {_PATIENT}")
    names = ", ".join(table.name for table in tables())
    await connection.execute(f"lock table {names} in share row exclusive mode")
    for table in tables():
        if table.name in SHARED_TABLES:
            await connection.execute(f"delete from {table.name}")  # noqa: S608  # a name of our own
        elif await connection.fetchval(f"select exists (select 1 from {table.name})"):  # noqa: S608  # likewise
            raise StoreNotEmpty(f"the queue is not empty: it has rows in {table.name}", where=table.name)
    return PostgresEnd(connection, (), {})


async def _numbers(connection: Any) -> dict[str, int]:
    """A sequence stands outside of transactions: it may be ahead of the rows, never behind."""
    found = {}
    for table in tables():
        if table.number is not None:
            sequence = await _sequence(connection, table)
            text = f"select case when is_called then last_value else last_value - 1 end from {sequence}"  # noqa: S608  # the database's own name
            found[table.name] = await connection.fetchval(text)
    return found


async def _sequence(connection: Any, table: Table) -> str:
    return str(await connection.fetchval("select pg_get_serial_sequence($1, $2)", table.name, table.number))


class PostgresEnd:
    """A transaction that is open on the whole queue."""

    def __init__(self, connection: Any, schema: Schema, numbers: dict[str, int]) -> None:
        self.schema = schema
        self.numbers = numbers
        self._connection = connection

    async def batches(self) -> AsyncIterator[Batch]:
        for table in tables():
            names = ", ".join(f"{c.name}::text" if c.type == "uuid" else c.name for c in table.columns)
            text = f"declare whole no scroll cursor for select {names} from {table.name}"  # noqa: S608  # names of our own
            with _translated():
                await self._connection.execute(text)
                pace = BatchSize()
                while rows := await self._connection.fetch(f"fetch {pace.rows} from whole"):
                    batch = await in_thread(pack, table, [tuple(row) for row in rows])
                    pace.saw(batch.packed)
                    yield batch
                await self._connection.execute("close whole")

    async def write(self, batch: Batch) -> None:
        table = batch.table
        with _translated():
            await self._connection.copy_records_to_table(table.name, records=batch.rows, columns=table.names)

    async def finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        with _translated():
            for table in tables():
                if table.number is not None and numbers.get(table.name):
                    sequence = await _sequence(self._connection, table)
                    await self._connection.execute("select setval($1::regclass, $2)", sequence, numbers[table.name])
            await self._connection.execute("delete from duties")
            await self._connection.execute(
                "insert into duties (name, due_at, last_run_at, counts, runs) values ('restore', $1, $1, $2, 1)",
                now,
                msgspec.json.encode(counts).decode(),
            )
