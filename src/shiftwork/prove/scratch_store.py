"""A store for one run: a schema or a file next to the user's own, read with plain SQL and removed at the end."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import apsw

from shiftwork.model.errors import StoreUnavailable

PREFIX = "shiftwork_prove_"
READ_SEC = 120.0
REMOVE_SEC = 60.0


class Scratch:
    """An empty store on the user's database or disk, and a folder for the run's files."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.is_sqlite = url.startswith("sqlite")
        self.schema = f"{PREFIX}{secrets.token_hex(4)}"
        self._connection: Any = None
        self._turn = asyncio.Lock()
        self.url = f"sqlite:///{folder / 'queue.db'}" if self.is_sqlite else with_schema(url, self.schema)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Query the database directly, without the engine under test."""
        (found,) = await self.snapshot([query])
        return found

    async def value(self, query: str) -> Any:
        return (await self.rows(query))[0][0]

    async def snapshot(self, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        """Read the rows of several queries in one snapshot."""
        if self.is_sqlite:
            return await asyncio.to_thread(self._sqlite_rows, queries)
        return await self._postgres_rows(queries)

    def _sqlite_rows(self, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        try:
            connection = apsw.Connection(str(self.folder / "queue.db"), flags=apsw.SQLITE_OPEN_READONLY)
        except apsw.Error as error:
            raise StoreUnavailable(str(error)) from error
        try:
            connection.set_busy_timeout(10_000)
            connection.execute("begin")  # the snapshot lasts until the connection is closed
            return [self.read_sqlite(connection, query) for query in queries]
        except apsw.Error as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            connection.close()

    def read_sqlite(self, connection: apsw.Connection, query: str) -> list[tuple[Any, ...]]:
        return list(connection.execute(query))

    async def _postgres_rows(self, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        """Run all queries on one connection: on a busy machine, connecting takes longer than most queries."""
        import asyncpg  # noqa: PLC0415  # an extra

        from shiftwork.store.postgres_errors import LOST  # noqa: PLC0415  # needs the extra

        async with self._turn:
            try:
                connection = self._connection = self._connection or await self._connect()
                if len(queries) == 1:  # it may be a statement that cannot run in a transaction
                    return [await self.read_postgres(connection, queries[0])]
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    return [await self.read_postgres(connection, query) for query in queries]
            except (asyncpg.PostgresError, *LOST) as error:
                self._disconnect()
                raise StoreUnavailable(str(error)) from error
            except BaseException:  # cancelled in the middle of a query
                self._disconnect()
                raise

    async def _connect(self) -> Any:
        import asyncpg  # noqa: PLC0415  # an extra

        from shiftwork.store.postgres_open import split_url  # noqa: PLC0415  # needs the extra

        return await asyncpg.connect(
            split_url(self.url)[0],
            timeout=5,
            command_timeout=READ_SEC,
            statement_cache_size=0,
            server_settings={"search_path": self.schema, "application_name": "shiftwork prove"},
        )

    def _disconnect(self) -> None:
        """Drop the connection; the next query opens a new one."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    async def read_postgres(self, connection: Any, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await connection.fetch(query)]

    async def size(self) -> int:
        """The size on disk, in bytes."""
        if self.is_sqlite:
            return sum(path.stat().st_size for path in self.folder.glob("queue.db*") if path.is_file())
        query = "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relnamespace = "
        return int(await self.value(f"{query}'{self.schema}'::regnamespace"))

    async def remove(self) -> None:
        """Remove the schema; retries for a while, because the server may be restarting."""
        if self.is_sqlite:
            return
        deadline = time.monotonic() + REMOVE_SEC
        while True:
            try:
                await self.rows(f"drop schema if exists {self.schema} cascade")
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.5)
            else:
                self._disconnect()
                return


def with_schema(url: str, schema: str) -> str:
    parts = urlsplit(url)
    query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key != "schema"]
    return urlunsplit(parts._replace(query=urlencode([*query, ("schema", schema)])))


@asynccontextmanager
async def scratch_at(url: str) -> AsyncIterator[Scratch]:
    """Create a scratch store and remove it afterwards. A SQLite file is on the same disk as the user's own."""
    near = Path(url.removeprefix("sqlite:///")).absolute().parent if url.startswith("sqlite") else None  # noqa: ASYNC240  # only reads the current folder
    folder = Path(tempfile.mkdtemp(prefix=".shiftwork-prove-", dir=near))
    scratch = Scratch(url, folder)
    try:
        yield scratch
    finally:
        try:
            await asyncio.shield(scratch.remove())
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def in_list(values: Sequence[str]) -> str:
    """The values as an SQL list. Only for ids from the database and our own constants: nothing is escaped."""
    return ", ".join(f"'{value}'" for value in values) or "null"
