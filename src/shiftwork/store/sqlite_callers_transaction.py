"""Runs a verb in the transaction of a caller's own connection to a queue's SQLite file.

Only apsw connections are accepted. Python's sqlite3 module contains another copy of the engine: two copies in one
process release each other's locks on a file, which eventually corrupts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from shiftwork.model.errors import ConnectionUnusable

T = TypeVar("T")
OTHER_ENGINE = (
    "Open the file with apsw.Connection: another copy of SQLite in this process, as in sqlite3, would damage it. "
    "PostgreSQL takes connections of asyncpg, psycopg and SQLAlchemy."
)


def adapt(connection: Any, path: Path | None) -> apsw.Connection:
    """The connection, if it is one to the queue's file and in a transaction."""
    if not isinstance(connection, apsw.Connection):
        kind = type(connection)
        raise ConnectionUnusable(
            f"{kind.__module__}.{kind.__qualname__} cannot be used with a queue on SQLite",
            where="connection",
            hint=OTHER_ENGINE,
            joinable=False,
        )
    file = connection.db_filename("main")
    if path is None or not file or Path(file).resolve() != path.resolve():
        raise ConnectionUnusable(
            f"the connection is to {file or 'a database in memory'}, the queue is in {path or 'memory'}",
            where="connection",
            hint="Open the queue on the file that the connection is to.",
            joinable=False,
        )
    if not connection.in_transaction:
        raise ConnectionUnusable(
            "the connection is not in a transaction", where="connection", hint="Execute `begin immediate` first."
        )
    return connection


async def run_through(connection: apsw.Connection, verb: Callable[[], T]) -> T:
    """Run a verb under a savepoint, in a thread, since it may wait for another writer. A refused one leaves no
    trace.
    """
    running = asyncio.ensure_future(asyncio.to_thread(_run_through, connection, verb))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])  # the connection is in use until then
        raise


def _run_through(connection: apsw.Connection, verb: Callable[[], T]) -> T:
    tracers = connection.exec_trace, connection.row_trace
    connection.exec_trace = connection.row_trace = None
    try:
        connection.execute("savepoint shiftwork")
        try:
            result = verb()
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback to shiftwork")
                connection.execute("release shiftwork")
            raise
        connection.execute("release shiftwork")
        return result
    finally:
        connection.exec_trace, connection.row_trace = tracers


def call_at_commit(connection: apsw.Connection, function: Callable[[], None]) -> None:
    """Call this once, when the open transaction commits; never if it is rolled back."""
    mark = object()

    def forget() -> None:
        connection.set_commit_hook(None, id=mark)
        connection.set_rollback_hook(None, id=mark)

    def at_commit() -> bool:
        forget()
        function()
        return False  # let the commit proceed

    connection.set_commit_hook(at_commit, id=mark)
    connection.set_rollback_hook(forget, id=mark)
