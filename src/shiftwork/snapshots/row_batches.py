"""The content of a queue as it travels: batches of rows, and a checksum that does not depend on their order.

The same content has the same checksum in SQLite, in PostgreSQL and in a file.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from shiftwork.store.catalogue import Table

P = ParamSpec("P")
T = TypeVar("T")
Row = Sequence[Any]
Schema = tuple[tuple[int, str, str], ...]
Progress = Callable[[str, int], None]
"""Called with each batch: its table, and how many rows have passed in all."""

MIN_COUNT, MAX_COUNT = 16, 2_000
BATCH_BYTES = 1 << 20
_MODULUS = 1 << 256
_ENCODE = msgspec.msgpack.Encoder().encode


class Batch(NamedTuple):
    """Some rows of one table, also as they are written and counted."""

    table: Table
    rows: Sequence[Row]
    packed: Sequence[bytes]


class Source(Protocol):
    """A queue that is read at one moment, whatever is written to it meanwhile."""

    schema: Schema
    numbers: dict[str, int]
    """The last number that each numbered table has given, also where its row is gone."""

    def batches(self) -> AsyncIterator[Batch]:
        """All rows of all tables."""


class Target(Protocol):
    """An empty queue that is being filled: whole once all is done, and empty again if anything fails."""

    async def write(self, batch: Batch) -> None:
        """Write some rows."""

    async def finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        """Go on numbering where the source was, and note that all of this came in now."""

    def batches(self) -> AsyncIterator[Batch]:
        """What was written, read back."""


class BatchSize:
    """How many rows the next batch has: about a mebibyte of them, however wide they are."""

    def __init__(self) -> None:
        self.rows = MIN_COUNT

    def saw(self, packed: Sequence[bytes]) -> None:
        room = BATCH_BYTES // max(1, sum(map(len, packed)) // max(1, len(packed)))
        self.rows = max(1, min(room, self.rows * 2, MAX_COUNT))


class Digest:
    """Counts rows and adds up their hashes, so that no database need sort its tables alike."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._columns: dict[str, tuple[str, ...]] = {}

    def add(self, batch: Batch) -> None:
        name = batch.table.name
        total = self._sums.get(name, 0)
        for row in batch.packed:
            total += int.from_bytes(hashlib.sha256(row).digest())
        self._sums[name] = total % _MODULUS
        self._columns[name] = batch.table.names
        self.counts[name] = self.counts.get(name, 0) + len(batch.packed)

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def checksum(self) -> str:
        """Over the names of tables and columns, how many rows there are, and what is in them."""
        names = sorted(self._sums)
        parts = [(name, self._columns[name], self.counts[name], f"{self._sums[name]:064x}") for name in names]
        return hashlib.sha256(_ENCODE(parts)).hexdigest()


def pack(table: Table, rows: Sequence[Row]) -> Batch:
    return Batch(table, rows, [_ENCODE(row) for row in rows])


async def in_thread(step: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """A step that would hold up the loop. One that has begun is seen to its end, also when the caller is cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(step, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
