"""Connections of the driver's pool that stay borrowed between two calls: to borrow one anew takes longer than a row.

The pool checks a connection when it comes back, in a task of its own; after a call that ended well there is nothing to
check. One whose call failed goes back to the pool, and so do all of them when others wait for one, now and then.
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
    """Lends connections of a pool, those first that were used last."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._spare: list[Any] = []
        self._lent: dict[Any, int] = {}
        """Connections in use, and how often the pool's had been replaced when they were lent."""
        self._replaced = 0
        self._waiting = 0
        self._closing = False

    @property
    def in_use(self) -> list[Any]:
        return [connection for connection in self._lent if _is_open(connection)]

    async def borrow(self) -> Any:
        """A connection that no one else uses; `give_back` must follow."""
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

    async def give_back(self, connection: Any, *, clean: bool) -> None:
        """End the use of a connection; `clean` says that its last call ended well."""
        replaced = self._lent.pop(connection)
        if clean and not self._waiting and not self._closing and replaced == self._replaced and _is_open(connection):
            self._spare.append(connection)
        else:
            await self._pool.release(connection)

    async def replace_all(self) -> None:
        """Trust none of the connections that are open now."""
        self._replaced += 1
        await self._pool.expire_connections()
        await self.return_spare()

    async def return_spare(self) -> None:
        """Let the pool have those that are not in use: it closes what is idle for long."""
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
    """Not so where the server or the network has ended it: then the pool has it back already."""
    return connection._con is not None and not connection.is_closed()  # noqa: SLF001  # the driver shows it nowhere else


async def roll_back(connection: Any, tx: PostgresTx) -> None:
    """End the transaction; a server that does not even answer that has lost the connection."""
    if not tx.begun:
        return
    try:
        async with asyncio.timeout(ROLLBACK_SEC):
            await connection.execute("rollback")
    except (asyncpg.PostgresError, asyncio.CancelledError, *LOST):
        # A cancellation is how early Pythons 3.11 tell a timeout inside another one; anyone who called us raises on.
        give_up(connection)


def give_up(connection: Any) -> None:
    """Without it the pool would wait until the driver has heard from the server, or never will."""
    with suppress(asyncpg.InterfaceError):  # it broke, and the pool has it back already
        connection.terminate()
