"""The seam between the queue's verbs and a database: a transaction in which named statements run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from shiftwork.model.errors import ShiftworkError
from shiftwork.store.stalls import StallDetector

Row = Mapping[str, Any]
T = TypeVar("T")


class ByColumn(tuple[Any, ...]):
    """A `rows` parameter as its columns, for PostgreSQL: lists, and arrays as that wrote them."""

    __slots__ = ()


class Tx(Protocol):
    """One open transaction. A verb awaits nothing but this, and has no effect but through it."""

    now: float
    """The store's time at the flush, in seconds since 1970. The same for all that the transaction does."""

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        """All rows of a named statement. A `rows` parameter is a list of tuples in its column order."""

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        """The first row, or None."""

    async def alone(self, name: str, /, **parameters: Any) -> Sequence[Row] | None:
        """The rows of a statement that is a transaction of its own, committed when this returns: one round trip.

        None where it cannot be one: then nothing was sent. A verb that goes on after it begins its transaction then,
        and must stand being repeated from its beginning.
        """

    def stay_open(self) -> None:
        """Let no statement be a transaction of its own: more than the verb has to be in this one."""

    async def run(self, name: str, /, **parameters: Any) -> None:
        """A statement whose rows no one wants."""

    async def insert(self, name: str, rows: Sequence[tuple[Any, ...]], /) -> None:
        """A bulk insert."""

    async def advisory_lock(self, name: str, /) -> None:
        """Wait until no other transaction holds this name; held until the end of this one."""

    def wake(self, lane: int, /) -> None:
        """Announce, once committed, that a lane has work."""

    def announce_end(self, ended: str, /, *, to_others: bool = True) -> None:
        """Announce, once committed, that a lineage of tasks or a DAG has ended: to other processes only if asked."""


Verb = Callable[[Tx], Awaitable[T]]
"""A verb is given as a callable, never as a coroutine object: it may be run again after a deadlock or a full disk."""

Clock = Callable[[], float]


class Store(Protocol):
    """A database that runs verbs. Answers are given after the commit."""

    url: str
    operation_max_sec: float
    """How long a verb may take before it ends with nothing changed."""
    refusal: ShiftworkError | None
    """Why it took no write of late; None if it takes them. Cleared by who writes something small now and then."""
    one_writer: bool
    """Whether a transaction that writes waits for any other that does."""
    stall_detector: StallDetector
    """When agents could not be heard: then their silence means nothing."""

    async def run(self, verb: Verb[T], /) -> T:
        """Run one verb in one transaction and answer after the commit."""

    async def run_on(self, connection: Any, verb: Verb[T], /) -> T:
        """Run one verb in the transaction that a caller has open on a connection of its own; the caller commits."""

    async def read(self, verb: Verb[T], /) -> T:
        """Run a verb that writes nothing, on one consistent snapshot."""

    async def read_in_turn(self, verb: Verb[T], /) -> T:
        """The same behind what is being written: answered when a heartbeat would be."""

    def now(self) -> float:
        """The time all servers of this store agree on."""

    def lane_wakes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[int]]]:
        """Lanes that got work, from this process and from others. May repeat, may miss: the poll repairs it."""

    @property
    def announces_ends(self) -> bool:
        """Whether endings in other processes are announced here; else who waits must look now and then."""

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        """Lineages and DAGs that ended, as `lane_wakes` has lanes; an empty set means that any may have."""

    async def settle_events(self) -> None:
        """Wait until every transaction that writes events now has ended: then a gap in their numbers is final."""

    async def close(self) -> None:
        """Finish what is running, refuse what comes after."""
