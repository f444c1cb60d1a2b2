"""The clock of a PostgreSQL server, for every process that uses it."""

from __future__ import annotations

import time
from typing import Any

from shiftwork.store.stalls import passed


class DatabaseClock:
    """The server's clock, read through this machine's steady one; the same for every process of a fleet."""

    def __init__(self) -> None:
        self._offset = time.time() - passed()

    def now(self) -> float:
        return passed() + self._offset

    async def measure(self, connection: Any) -> None:
        """Best of five: the answer with the shortest round trip has the smallest error."""
        samples: list[tuple[float, float]] = []
        async with connection.transaction():  # outside of one a pooler may send each message to another server
            for _ in range(5):
                sent = passed()
                there = await connection.fetchval("select extract(epoch from clock_timestamp())::float8")
                back = passed()
                samples.append((back - sent, there - (sent + back) / 2))
        self._take(min(samples)[1])

    def _take(self, offset: float) -> None:
        self._offset = offset
