"""A PostgreSQL queue as one end of a copy: one transaction, read through cursors or written with COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import msgspec

from shiftwork.model.errors import StoreNotEmpty
from shiftwork.snapshots.row_batches import Batch, BatchSize, Schema, in_thread, pack
from shiftwork.store import migrate
from shiftwork.store.catalogue import DISTRUST_COUNTS, SHARED_TABLES, Table, tables
from shiftwork.store.postgres_connect import open_connection
from shiftwork.store.postgres_errors import translate
from shiftwork.store.postgres_migrate import done
from shiftwork.store.postgres_open import default_schema, split_url
from shiftwork.store.postgres_schema import qualify, quoted
from shiftwork.store.postgres_statistics import tell_planner

_PATIENT = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"

SINGLE_EVENTS = "single_events"

_RESTORED = "insert into duties (name, due_at, last_run_at, counts, runs) values ('restore', $1, $1, $2, 1)"


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[PostgresEnd]:
    """Open the queue for reading, as it is now."""
    async with _connected(url) as (connection, schema):
        with _translated():
            end = await _begin_reading(connection, schema)
        yield end


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[PostgresEnd]:
    """Open an empty queue for writing; commits if the block ends without an error."""
    async with _connected(url) as (connection, schema):
        with _translated():
            end = await _begin_writing(connection, schema)
        yield end
        with _translated():
            await tell_planner(connection, {table.name: 0 for table in tables()}, schema)
            await connection.execute("commit")


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[Any, str]]:
    """A connection to the database, and the queue's schema in it."""
    dsn, options = split_url(url)
    with _translated():
        # No prepared statements: a pooler may switch connections.
        # A different name, so that the connection is not ended while the other end is slow.
        name = {"application_name": "shiftwork copy"}
        connection = await open_connection(dsn, statement_cache_size=0, server_settings=name)
    try:
        with _translated():
            schema = options.get("schema") or await default_schema(connection)
        yield connection, schema
    finally:
        connection.terminate()  # rolls back an open transaction, whatever its state


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translate(error) from error


async def _begin_reading(connection: Any, schema: str) -> PostgresEnd:
    await connection.execute(f"begin isolation level repeatable read read only; {_PATIENT}")
    had = tuple(await done(connection, schema))
    migrate.refuse_other("postgres", had)
    return PostgresEnd(connection, schema, had, await _numbers(connection, schema))


async def _begin_writing(connection: Any, schema: str) -> PostgresEnd:
    await connection.execute(f"begin; {_PATIENT}")
    names = ", ".join(_place(schema, table) for table in tables())
    await connection.execute(f"lock table {names} in share row exclusive mode")
    for table in tables():
        place = _place(schema, table)
        if table.name in SHARED_TABLES:
            await connection.execute(f"delete from {place}")  # noqa: S608  # our own table name
        elif await connection.fetchval(f"select exists (select 1 from {place})"):  # noqa: S608  # likewise
            raise StoreNotEmpty(f"the queue is not empty: it has rows in {table.name}", where=table.name)
    return PostgresEnd(connection, schema, (), {})


def _place(schema: str, table: Table) -> str:
    return f"{quoted(schema)}.{table.name}"


def _readable(schema: str, table: Table) -> str:
    """The source of a table's rows in the common format: here, one row can store several events."""
    return f"{quoted(schema)}.{SINGLE_EVENTS}" if table.name == "events" else _place(schema, table)


async def _numbers(connection: Any, schema: str) -> dict[str, int]:
    """Sequences are not transactional: they can be ahead of the rows, never behind."""
    found = {}
    for table in tables():
        if table.number is not None:
            sequence = await _sequence(connection, schema, table)
            text = f"select case when is_called then last_value else last_value - 1 end from {sequence}"  # noqa: S608  # the database's own name
            found[table.name] = await connection.fetchval(text)
    return found


async def _sequence(connection: Any, schema: str, table: Table) -> str:
    text = "select pg_get_serial_sequence($1, $2)"
    return str(await connection.fetchval(text, _place(schema, table), table.number))


class PostgresEnd:
    """An open transaction on the whole queue."""

    def __init__(self, connection: Any, home: str, schema: Schema, numbers: dict[str, int]) -> None:
        self.schema = schema
        self.numbers = numbers
        self._connection = connection
        self._home = home

    async def batches(self) -> AsyncIterator[Batch]:
        for table in tables():
            names = ", ".join(f"{c.name}::text" if c.type == "uuid" else c.name for c in table.columns)
            text = f"declare whole no scroll cursor for select {names} from {_readable(self._home, table)}"  # noqa: S608  # names of our own
            with _translated():
                await self._connection.execute(text)
                pace = BatchSize()
                while rows := await self._connection.fetch(f"fetch {pace.rows} from whole"):
                    batch = await in_thread(pack, table, [tuple(row) for row in rows])
                    pace.adapt(batch.packed)
                    yield batch
                await self._connection.execute("close whole")

    async def write(self, batch: Batch) -> None:
        table = batch.table
        with _translated():
            await self._connection.copy_records_to_table(
                table.name, records=batch.rows, columns=table.names, schema_name=self._home
            )

    async def finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        with _translated():
            for table in tables():
                if table.number is not None and numbers.get(table.name):
                    sequence = await _sequence(self._connection, self._home, table)
                    await self._connection.execute("select setval($1::regclass, $2)", sequence, numbers[table.name])
            await self._connection.execute(qualify("delete from duties", self._home))
            await self._connection.execute(qualify(DISTRUST_COUNTS, self._home))
            await self._connection.execute(
                qualify(_RESTORED, self._home),
                now,
                msgspec.json.encode(counts).decode(),
            )
