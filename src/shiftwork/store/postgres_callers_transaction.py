"""Runs a verb in the transaction that a caller has open on a connection of its own to the queue's database.

The verb runs under a savepoint: a refused call leaves the caller's transaction unchanged. Wake-ups are notifications of
that transaction, so they are delivered when it commits and never otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import asyncpg

from shiftwork.model.errors import ConnectionUnusable, ShiftworkError, StoreLocked
from shiftwork.store.callers_connection import CallersConnection, adapt, no_transaction
from shiftwork.store.postgres_errors import AGAIN, LOST, message_of, translate
from shiftwork.store.postgres_schema import channels
from shiftwork.store.postgres_tx import PostgresTx
from shiftwork.store.store import Verb

T = TypeVar("T")
MAX_PAYLOAD = 7900
"""The longest payload in characters; PostgreSQL accepts 8,000 bytes."""

IDENTITY = "select pg_postmaster_start_time()::text as server, current_database()::text as database"
"""Identifies the server: no two were started in the same microsecond, and a copy counts as another server."""


class Home(Protocol):
    """The store whose verb is run."""

    schema: str

    def now(self) -> float: ...

    async def identity(self, *, fresh: bool) -> tuple[str, str]: ...


class JoinedTx(PostgresTx):
    """A caller's transaction, which has already begun. Not every driver supports COPY, so it is not used."""

    copies = False

    def __init__(self, connection: CallersConnection, now: float, schema: str) -> None:
        super().__init__(connection, now, "", schema=schema)
        self.begun = True


async def run_on(store: Home, connection: Any, verb: Verb[T]) -> T:
    """Run the verb on the caller's connection. It takes effect when the caller commits."""
    try:
        caller = await adapt(connection)
        await _check_database(store, caller)
        await caller.execute("savepoint shiftwork")
    except Exception as error:
        raise _translated(error) from error
    try:
        tx = JoinedTx(caller, store.now(), store.schema)
        result = await verb(tx)
        await tx.flush()
        ready, ends = channels(store.schema)
        for channel, names in ((ready, [str(lane) for lane in sorted(tx.wakes)]), (ends, sorted(tx.ended))):
            if names:
                await caller.execute("select pg_notify($1, $2)", channel, _payload(names))
        await caller.execute("release savepoint shiftwork")
    except BaseException as error:
        with suppress(Exception):  # a lost connection has already rolled back
            await caller.execute("rollback to savepoint shiftwork")
            await caller.execute("release savepoint shiftwork")
        if isinstance(error, Exception):
            raise _translated(error) from error
        raise
    return result


async def _check_database(store: Home, caller: CallersConnection) -> None:
    (theirs,) = await caller.fetch(IDENTITY)
    if (theirs["server"], theirs["database"]) == await store.identity(fresh=False):
        return
    ours = await store.identity(fresh=True)  # the server may have restarted, or another one taken over
    if (theirs["server"], theirs["database"]) != ours:
        raise ConnectionUnusable(
            f"the connection is to the database {theirs['database']!r}, the queue is in {ours[1]!r}"
            if theirs["database"] != ours[1]
            else f"the connection is to a database {ours[1]!r} on another server than the queue's",
            where="connection",
            hint="Open the queue on the database that the connection is to.",
            joinable=False,
        )


def _payload(names: Sequence[str]) -> str:
    """The payload of a notice without a sender, so that this process receives it, too; too many names become "all"."""
    text = ",".join(names)
    return f":{text}" if len(text) <= MAX_PAYLOAD else ":"


def _translated(error: Exception) -> Exception:
    """The queue's own error for a driver's error; any other error unchanged."""
    server_error = _as_server_error(error)
    if isinstance(server_error, asyncpg.InFailedSQLTransactionError):
        return ConnectionUnusable(
            "the transaction of the connection has failed", where="connection", hint="Roll it back and begin a new one."
        )
    if isinstance(server_error, asyncpg.NoActiveSQLTransactionError):
        return no_transaction()
    if isinstance(server_error, AGAIN):
        return StoreLocked(
            f"PostgreSQL: {message_of(server_error)}", hint="Roll your transaction back and run it again."
        )
    if isinstance(server_error, asyncpg.InterfaceError):
        return ConnectionUnusable(f"the connection cannot be used: {message_of(server_error)}", where="connection")
    if isinstance(server_error, (asyncpg.PostgresError, *LOST)):
        return translate(server_error)
    return error


def _as_server_error(error: Exception) -> Exception:
    """The server's error behind one of psycopg or SQLAlchemy, found by its code."""
    if isinstance(error, (ShiftworkError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        return error
    if (of_driver := getattr(error, "orig", None)) is not None:
        error = of_driver
    code = getattr(error, "sqlstate", None)
    if isinstance(code, str):
        server_error: Exception = asyncpg.PostgresError.new({"C": code, "M": str(error).partition("\n")[0]})
        return server_error
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        return asyncpg.InterfaceError(str(error))
    return error
