"""Keeps connections of the driver's pool borrowed between calls: borrowing one again takes longer than reading a row.

The pool checks a returned connection in a task of its own; after a successful call there is nothing to check. A
connection whose call failed is returned to the pool, as are all of them from time to time and when others wait for one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg

from shiftwork.store.postgres_errors import LOST
from shiftwork.store.postgres_tx import PostgresTx

ROLLBACK_SEC = 2.0


class Connections:
    """Lends connections of a pool, the most recently used first."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._spare: list[Any] = []
        self._lent: dict[Any, int] = {}
        """Connections in use, each with the pool's generation when it was lent."""
        self._replaced = 0
        self._waiting = 0
        self._closing = False

    @property
    def in_use(self) -> list[Any]:
        return [connection for connection in self._lent if _is_open(connection)]

    async def borrow(self) -> Any:
        """Borrow a connection; `release` must follow."""
        connection = self._take_spare()
        while connection is None:
            self._waiting += 1
            try:
                connection = await self._pool.acquire()
            finally:
                self._waiting -= 1
        self._lent[connection] = self._replaced
        return connection

    def _take_spare(self) -> Any | None:
        while self._spare:
            connection = self._spare.pop()
            if _is_open(connection):
                return connection
        return None

    async def release(self, connection: Any, *, clean: bool) -> None:
        """Return a connection; `clean` says that its last call succeeded."""
        replaced = self._lent.pop(connection)
        if clean and not self._waiting and not self._closing and replaced == self._replaced and _is_open(connection):
            self._spare.append(connection)
        else:
            await self._pool.release(connection)

    async def replace_all(self) -> None:
        """Use none of the connections again that are open now."""
        self._replaced += 1
        await self._pool.expire_connections()
        await self.return_spare()

    async def return_spare(self) -> None:
        """Return the unused connections to the pool, which closes idle ones."""
        spare, self._spare = self._spare, []
        for connection in spare:
            await self._pool.release(connection)

    async def close(self) -> None:
        """Wait until no connection is in use, and close them all."""
        self._closing = True
        await self.return_spare()
        await self._pool.close()

    def terminate(self) -> None:
        self._pool.terminate()


def _is_open(connection: Any) -> bool:
    """Whether the connection is still borrowed: if the server or the network ended it, the pool already has it back."""
    return connection._con is not None and not connection.is_closed()  # noqa: SLF001  # the driver exposes it nowhere else


async def roll_back(connection: Any, tx: PostgresTx) -> None:
    """End the transaction; if the server does not even answer that, the connection is lost."""
    if not tx.begun:
        return
    try:
        async with asyncio.timeout(ROLLBACK_SEC):
            await connection.execute("rollback")
    except (asyncpg.PostgresError, asyncio.CancelledError, *LOST):
        # Early releases of Python 3.11 report a nested timeout as a cancellation; the caller raises it again.
        give_up(connection)


def give_up(connection: Any) -> None:
    """Terminate the connection: otherwise the pool would wait for an answer of the server."""
    with suppress(asyncpg.InterfaceError):  # it broke, and the pool already has it back
        connection.terminate()
