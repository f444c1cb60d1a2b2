"""The transfer format of a queue: batches of rows, and a checksum that does not depend on their order.

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
"""Called after each batch with its table and the total number of rows so far."""

MIN_COUNT, MAX_COUNT = 16, 2_000
BATCH_BYTES = 1 << 20
_MODULUS = 1 << 256
_ENCODE = msgspec.msgpack.Encoder().encode


class Batch(NamedTuple):
    """Some rows of one table, with their encoded form."""

    table: Table
    rows: Sequence[Row]
    packed: Sequence[bytes]


class Source(Protocol):
    """A queue read at one moment, regardless of concurrent writes."""

    schema: Schema
    numbers: dict[str, int]
    """The last number assigned in each numbered table, even if its row was deleted."""

    def batches(self) -> AsyncIterator[Batch]:
        """All rows of all tables."""


class Target(Protocol):
    """An empty queue that is being filled: complete at the end, or empty again after any failure."""

    async def write(self, batch: Batch) -> None:
        """Write some rows."""

    async def finish(self, numbers: dict[str, int], counts: dict[str, int], now: float) -> None:
        """Continue the source's numbering, and record the restore."""

    def batches(self) -> AsyncIterator[Batch]:
        """Read back what was written."""


class BatchSize:
    """The number of rows in the next batch: about one mebibyte, whatever their width."""

    def __init__(self) -> None:
        self.rows = MIN_COUNT

    def adapt(self, packed: Sequence[bytes]) -> None:
        room = BATCH_BYTES // max(1, sum(map(len, packed)) // max(1, len(packed)))
        self.rows = max(1, min(room, self.rows * 2, MAX_COUNT))


class Digest:
    """Counts rows and adds up their hashes, so that the order of rows does not matter."""

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
        """The checksum of table and column names, row counts and contents."""
        names = sorted(self._sums)
        parts = [(name, self._columns[name], self.counts[name], f"{self._sums[name]:064x}") for name in names]
        return hashlib.sha256(_ENCODE(parts)).hexdigest()


def pack(table: Table, rows: Sequence[Row]) -> Batch:
    return Batch(table, rows, [_ENCODE(row) for row in rows])


async def in_thread(step: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run a blocking step in a thread. A started step runs to its end, even if the caller is cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(step, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
