"""A SQLite queue as one end of a copy: one transaction, read or written in batches in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from shiftwork.model.errors import InputError, StoreNotEmpty, StoreUnavailable, StoreUnsuitable
from shiftwork.snapshots.row_batches import Batch, BatchSize, Row, Schema, in_thread, pack
from shiftwork.store import migrate
from shiftwork.store.catalogue import DISTRUST_COUNTS, SHARED_TABLES, Table, tables
from shiftwork.store.sqlite_tx import translate

BUSY_MS = 10_000


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[SqliteEnd]:
    """Open the queue for reading, as it is now."""
    async with _connected(_path(url), apsw.SQLITE_OPEN_READONLY) as connection:
        with _translated():
            end = await in_thread(_begin_reading, connection)
        yield end


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[SqliteEnd]:
    """Open an empty queue for writing; commits if the block ends without an error."""
    async with _connected(_path(url), apsw.SQLITE_OPEN_READWRITE) as connection:
        with _translated():
            end = await in_thread(_begin_writing, connection)
        yield end
        with _translated():
            await in_thread(connection.execute, "commit")


def _path(url: str) -> Path:
    name = url.partition("://")[2].removeprefix("/")
    if name in {"", ":memory:"}:
        raise InputError("a queue in memory can only be read by its own process", where="store", hint="Name a file.")
    path = Path(name).absolute()
    if not path.exists():
        raise StoreUnavailable(f"there is no queue at {path}", where=str(path), hint="Check the path.")
    return path


@asynccontextmanager
async def _connected(path: Path, flags: int) -> AsyncIterator[apsw.Connection]:
    with _translated():
        connection = await in_thread(apsw.Connection, str(path), flags=flags)
    try:
        connection.set_busy_timeout(BUSY_MS)
        yield connection
    finally:
        await in_thread(connection.close)  # rolls back an open transaction


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translate(error) from error


def _begin_reading(connection: apsw.Connection) -> SqliteEnd:
    connection.execute("begin")
    if not list(connection.execute("select 1 from sqlite_schema where name = 'migrations'")):
        raise StoreUnsuitable("the file contains no queue", hint="Check the path.")
    schema = tuple(connection.execute("select number, name, checksum from migrations order by number"))
    migrate.refuse_other("sqlite", schema)
    return SqliteEnd(connection, schema)


def _begin_writing(connection: apsw.Connection) -> SqliteEnd:
    connection.pragma("synchronous", "full")
    connection.execute("begin immediate")
    for table in tables():
        if table.name in SHARED_TABLES:
            connection.execute(f"delete from {table.name}")  # noqa: S608  # our own table name
        elif list(connection.execute(f"select 1 from {table.name} limit 1")):  # noqa: S608  # likewise
            raise StoreNotEmpty(f"the queue is not empty: it has rows in {table.name}", where=table.name)
    return SqliteEnd(connection, ())


class SqliteEnd:
    """An open transaction on the whole queue."""

    def __init__(self, connection: apsw.Connection, schema: Schema) -> None:
        self.schema = schema
        self._connection = connection
        self.numbers = {
            str(name): int(number) for name, number in connection.execute("select name, seq from sqlite_sequence")
        }

    async def batches(self) -> AsyncIterator[Batch]:
        for table in tables():
            pace = BatchSize()
            with _translated():
                rows = self._connection.execute(f"select {', '.join(table.names)} from {table.name}")  # noqa: S608  # likewise
                while batch := await in_thread(_next, table, rows, pace):
                    yield batch

    async def write(self, batch: Batch) -> None:
        with _translated():
            await in_thread(self._write, batch)

    def _write(self, batch: Batch) -> None:
        marks = ", ".join("?" for _ in batch.table.columns)
        text = f"insert into {batch.table.name} ({', '.join(batch.table.names)}) values ({marks})"  # noqa: S608  # likewise
        self._connection.executemany(text, batch.rows)

    async def finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        with _translated():
            await in_thread(self._finish, numbers, counts, now)

    def _finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        for table in tables():
            if table.number is not None and table.name in numbers:
                self._connection.execute("delete from sqlite_sequence where name = ?", (table.name,))
                place = (table.name, numbers[table.name])
                self._connection.execute("insert into sqlite_sequence (name, seq) values (?, ?)", place)
        self._connection.execute("delete from duties")
        self._connection.execute(DISTRUST_COUNTS)
        self._connection.execute(
            "insert into duties (name, due_at, last_run_at, counts, runs) values ('restore', ?, ?, ?, 1)",
            (now, now, msgspec.json.encode(counts).decode()),
        )


def _next(table: Table, rows: Iterator[Row], pace: BatchSize) -> Batch | None:
    found: list[Row] = list(islice(rows, pace.rows))
    if not found:
        return None
    batch = pack(table, _with_booleans(found, table.places("boolean")))
    pace.adapt(batch.packed)
    return batch


def _with_booleans(rows: list[Row], places: tuple[int, ...]) -> list[Row]:
    """Convert booleans, which SQLite stores as numbers."""
    if not places:
        return rows
    changed = [list(row) for row in rows]
    for row in changed:
        for place in places:
            row[place] = None if row[place] is None else bool(row[place])
    return [*changed]
