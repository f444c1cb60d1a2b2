"""The seam between the queue's verbs and a database: a transaction in which named statements run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from shiftwork.model.errors import ShiftworkError
from shiftwork.store.stalls import StallDetector

Row = Mapping[str, Any]
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def record(kind: type[S], row: Row, **others: Any) -> S:
    """A record with the columns of the same names as its fields; `others` are the fields made in another way."""
    return kind(**{name: row[name] for name in kind.__struct_fields__ if name not in others}, **others)


class ByColumn(tuple[Any, ...]):
    """A `rows` parameter given as columns, for PostgreSQL: lists, or array literals that it returned."""

    __slots__ = ()


class AlikeRows:
    """Rows to insert that differ in only one value, which is in one or several columns."""

    def __init__(self, row: tuple[Any, ...], places: Sequence[int], values: Sequence[Any]) -> None:
        self.row = row
        """A row; its values at `places` are replaced."""
        self.places = places
        """The columns of the value that differs, in ascending order."""
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        row = list(self.row)
        for value in self.values:
            for place in self.places:
                row[place] = value
            yield tuple(row)


Rows = Sequence[tuple[Any, ...]] | AlikeRows


class Tx(Protocol):
    """One open transaction. A verb awaits nothing else, and has no other effects."""

    now: float
    """The store's time at the start, in seconds since 1970. It stays the same for the whole transaction."""

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        """All rows of a named statement. A `rows` parameter is a list of tuples in its column order."""

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        """The first row, or None."""

    async def alone(self, name: str, /, **parameters: Any) -> Sequence[Row] | None:
        """Run a statement as a transaction of its own, committed when this returns: one round trip.

        None if that is not possible: then nothing was sent. If the verb continues after it, its transaction begins only
        then, and the verb must tolerate being repeated from its start.
        """

    def stay_open(self) -> None:
        """Forbid statements as transactions of their own: other work must be part of this one."""

    async def run(self, name: str, /, **parameters: Any) -> None:
        """Run a statement and discard its rows."""

    async def insert(self, name: str, rows: Rows, /) -> None:
        """A bulk insert."""

    async def advisory_lock(self, name: str, /) -> None:
        """Lock a name until the end of the transaction."""

    def wake(self, lane: int, /) -> None:
        """Announce, once committed, that a lane has work."""

    def announce_end(self, *ended: str, to_others: bool = True) -> None:
        """Announce, once committed, that lineages of tasks or DAGs have ended: to other processes only if asked."""


Verb = Callable[[Tx], Awaitable[T]]
"""A callable, never a coroutine object: the verb may be run again after a deadlock or a full disk."""

Clock = Callable[[], float]


class Store(Protocol):
    """A database that runs verbs. Results are returned after the commit."""

    url: str
    operation_max_sec: float
    """How long a verb may take before it is aborted."""
    refusal: ShiftworkError | None
    """Why the last write was refused; None if writes are accepted. The write probe clears it."""
    one_writer: bool
    """Whether all writing transactions run one after another."""
    stall_detector: StallDetector
    """Records when agents could not be heard: then their silence means nothing."""

    async def run(self, verb: Verb[T], /) -> T:
        """Run a verb in one transaction; returns after the commit."""

    async def run_on(self, connection: Any, verb: Verb[T], /) -> T:
        """Run a verb in the transaction open on the caller's own connection; the caller commits."""

    async def read(self, verb: Verb[T], /) -> T:
        """Run a read-only verb on one consistent snapshot."""

    async def read_in_turn(self, verb: Verb[T], /) -> T:
        """The same, queued behind current writes: it is answered when a heartbeat would be."""

    def now(self) -> float:
        """The time all servers of this store agree on."""

    def lane_wakes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[int]]]:
        """Lanes that got work, from this process and others. May repeat or miss some: the poll makes up for it."""

    @property
    def announces_ends(self) -> bool:
        """Whether ends in other processes are announced here; otherwise waiters must poll."""

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        """Lineages and DAGs that ended, as `lane_wakes` has lanes; an empty set means that any may have."""

    async def settle_events(self) -> None:
        """Wait until every current transaction that writes events has ended: then gaps in their numbers are final."""

    async def close(self) -> None:
        """Finish running calls and refuse later ones."""
