"""Adapts callers' PostgreSQL connections (asyncpg, psycopg 3, SQLAlchemy) to our statements.

None of the drivers is imported here: a connection of one can only exist if it is already loaded.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from shiftwork.model.errors import ConnectionUnusable
from shiftwork.store.store import Row

T = TypeVar("T")
KINDS = "Pass a connection of asyncpg, psycopg 3, or SQLAlchemy over one of these two."
BEGIN = "Begin a transaction on the connection first."


class CallersConnection(Protocol):
    """A connection inside its owner's transaction; parameters are written $1, $2, …"""

    async def fetch(self, text: str, *values: Any) -> Sequence[Row]:
        """All rows, with ids as text and JSON as text."""

    async def fetchrow(self, text: str, *values: Any) -> Row | None:
        """The first row, or None."""

    async def execute(self, text: str, *values: Any, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as asyncpg has it
        """Run a statement and discard its rows."""


async def adapt(connection: Any) -> CallersConnection:
    """Wrap the caller's connection for our statements. One that is not in a transaction is refused."""
    connection = await _of_sqlalchemy(connection)
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        return _on_asyncpg(connection)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection | psycopg.Connection):
        return _on_psycopg(connection)
    kind = type(connection)
    raise ConnectionUnusable(
        f"{kind.__module__}.{kind.__qualname__} is not a connection that can be used here",
        where="connection",
        hint=KINDS,
        joinable=False,
    )


async def _of_sqlalchemy(connection: Any) -> Any:
    """The driver's own connection under a connection or session of SQLAlchemy, in the transaction it has begun."""
    extension, orm, core = (
        sys.modules.get(name) for name in ("sqlalchemy.ext.asyncio", "sqlalchemy.orm", "sqlalchemy")
    )
    if extension is not None:
        if isinstance(connection, extension.AsyncSession | extension.async_scoped_session):
            connection = await connection.connection()
        if isinstance(connection, extension.AsyncConnection):
            await connection.exec_driver_sql("select 1")  # begins the transaction, if nothing was done yet
            return (await connection.get_raw_connection()).driver_connection
    if orm is not None and isinstance(connection, orm.Session | orm.scoped_session):
        connection = await in_thread(connection.connection)
    if core is not None and isinstance(connection, core.Connection):
        await in_thread(lambda: connection.exec_driver_sql("select 1"))
        return connection.connection.driver_connection
    return connection


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking call in a thread. A cancelled caller still waits for it: the connection is in use."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _on_asyncpg(connection: Any) -> CallersConnection:
    if getattr(connection, "_loop", None) is not asyncio.get_running_loop():
        raise ConnectionUnusable(
            "the connection belongs to another event loop",
            where="connection",
            hint="Submit in the event loop that opened it, or give a SyncQueue a psycopg connection.",
        )
    if not connection.is_in_transaction():
        raise no_transaction()
    return AsyncpgConnection(connection)


def _on_psycopg(connection: Any) -> CallersConnection:
    idle = sys.modules["psycopg"].pq.TransactionStatus.IDLE
    if connection.autocommit and connection.info.transaction_status == idle:
        raise no_transaction()
    is_async = isinstance(connection, sys.modules["psycopg"].AsyncConnection)
    return AsyncPsycopgConnection(connection) if is_async else PsycopgConnection(connection)


def no_transaction() -> ConnectionUnusable:
    return ConnectionUnusable("the connection is not in a transaction", where="connection", hint=BEGIN)


class AsyncpgConnection:
    """A connection of asyncpg. Its owner may have other codecs for ids and JSON than we do, as SQLAlchemy has."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._empty_text: Any = None
        """How the owner's codec decodes an empty JSON text."""

    async def fetch(self, text: str, *values: Any) -> Sequence[Row]:
        if self._empty_text is None:
            self._empty_text = await self._connection.fetchval("select '\"\"'::json")
        if self._empty_text == '""':
            return [_with_text_ids(row) for row in await self._connection.fetch(text, *values)]
        if text not in _WITHOUT_CODECS:
            _WITHOUT_CODECS[text] = _without_codecs(text, await self._connection.prepare(text))
        text, columns = _WITHOUT_CODECS[text]
        rows = [_with_text_ids(row) for row in await self._connection.fetch(text, *values)]
        return [row | {key: self._as_text(row[key]) for key in columns if row[key] is not None} for row in rows]

    def _as_text(self, value: Any) -> str:
        if isinstance(self._empty_text, bytes):
            return bytes(value).decode()
        return msgspec.json.encode(value).decode()

    async def fetchrow(self, text: str, *values: Any) -> Row | None:
        rows = await self.fetch(text, *values)
        return rows[0] if rows else None

    async def execute(self, text: str, *values: Any, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # its owner decides how long a statement may take
        if values:
            await self.fetch(text, *values)
        else:
            await self._connection.execute(text)


_WITHOUT_CODECS: dict[str, tuple[str, list[str]]] = {}
"""By statement: a variant that sends JSON as text, and the JSON columns of its answer."""


def _without_codecs(text: str, statement: Any) -> tuple[str, list[str]]:
    kinds = [kind.name for kind in statement.get_parameters()]
    casts = {str(place): _AS_TEXT[kind] for place, kind in enumerate(kinds, 1) if kind in _AS_TEXT}
    written = re.sub(r"\$(\d+)", lambda m: m[0] + casts.get(m[1], ""), text)
    return written, [column.name for column in statement.get_attributes() if column.type.name == "json"]


_AS_TEXT = {"json": "::text::json", "json[]": "::text[]::json[]"}


def _with_text_ids(row: Any) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, UUID) else value for key, value in row.items()}


class PsycopgConnection:
    """A blocking connection of psycopg 3. Every value is sent as text, which the server converts to the type it
    needs.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, text: str, *values: Any) -> Sequence[Row]:
        return await in_thread(lambda: self._fetch(text, values))

    def _fetch(self, text: str, values: Sequence[Any]) -> Sequence[Row]:
        with _prepared(sys.modules["psycopg"].RawCursor, self._connection) as cursor:
            cursor.execute(text, [literal(value) for value in values])
            return cursor.fetchall() if cursor.description else []

    async def fetchrow(self, text: str, *values: Any) -> Row | None:
        rows = await self.fetch(text, *values)
        return rows[0] if rows else None

    async def execute(self, text: str, *values: Any, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # its owner decides how long a statement may take
        await self.fetch(text, *values)


class AsyncPsycopgConnection(PsycopgConnection):
    """The same for an async connection."""

    async def fetch(self, text: str, *values: Any) -> Sequence[Row]:
        async with _prepared(sys.modules["psycopg"].AsyncRawCursor, self._connection) as cursor:
            await cursor.execute(text, [literal(value) for value in values])
            return await cursor.fetchall() if cursor.description else []


def _prepared(kind: Any, connection: Any) -> Any:
    """A cursor with our own adapters, whatever its owner has registered on the connection."""
    from psycopg.rows import dict_row  # noqa: PLC0415  # it is loaded, or there would be no connection
    from psycopg.types.string import StrDumperUnknown, TextLoader  # noqa: PLC0415  # likewise

    cursor = kind(connection, row_factory=dict_row)
    cursor.adapters.register_dumper(str, StrDumperUnknown)
    for name in ("uuid", "json"):
        cursor.adapters.register_loader(name, TextLoader)
    return cursor


def literal(value: Any) -> str | None:
    """A value in PostgreSQL's text form."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list | tuple):
        return "{" + ",".join(_element(each) for each in value) + "}"
    return str(value)


def _element(value: Any) -> str:
    text = literal(value)
    if text is None:
        return "null"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
