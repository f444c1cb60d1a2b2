"""The log of events, read so that no event is missed or seen twice, whatever the order of commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from shiftwork.store.store import Row, Store, Tx

_FAR = 2**61

SPREAD = 4096
"""A row shared by several events is stored under the last of their numbers, which exceeds each of them by less than
this."""


class Part(NamedTuple):
    """Events in the order of their numbers, and the number up to which nothing more will come."""

    rows: Sequence[Row]
    last: int


class Stretch(NamedTuple):
    """Where to continue in the log: the number of the last event read, and of the last row that contains one."""

    last: int
    last_row: int


async def read(store: Store, after: int, count: int, workspace: str | None = None) -> Part:
    """Read the events after a number, of one workspace or of all. A reader that continues from `last` sees every event
    once.
    """
    stretch, whole, rows = await store.read(lambda tx: _read_page(tx, after, count, workspace))
    if not whole:
        # A number is missing: its transaction is still open, or was rolled back. Wait for those open now.
        await store.settle_events()
        rows = await store.read(lambda tx: _upto(tx, after, _widened(stretch), workspace))
    return Part(rows, stretch.last)


async def settled(store: Store, after: int, count: int) -> Stretch:
    """Read up to this many events after a number, once no lower number can still be committed."""
    stretch, whole = await store.read(lambda tx: _last_of(tx, after, count))
    if whole:
        return stretch
    await store.settle_events()
    return _widened(stretch)


def _widened(stretch: Stretch) -> Stretch:
    """Include rows committed since the last look."""
    return Stretch(stretch.last, stretch.last + SPREAD - 1)


async def newest(store: Store) -> int:
    """A number below that of every event committed from now on."""
    seq = await store.read(last)
    await store.settle_events()  # a lower number in an open transaction would be committed later and be missed
    return seq


async def last(tx: Tx, of: Literal["event", "alert"] = "event") -> int:
    """The highest number committed; lower ones may still follow."""
    row = await tx.one(f"last_{of}")
    return int(row["seq"] or 0) if row else 0


async def read_alerts(store: Store, after: int, count: int) -> Part:
    """The same for alerts of all workspaces: their numbers are taken under the lock of the events written with them."""
    rows = await store.read(lambda tx: tx.all("alerts_upto", after=after, last=after + _FAR, count=count))
    if not rows:
        return Part((), after)
    last = int(rows[-1]["seq"])
    if last - after != len(rows):
        await store.settle_events()
        rows = await store.read(lambda tx: tx.all("alerts_upto", after=after, last=last, count=last - after))
    return Part(rows, last)


async def _last_of(tx: Tx, after: int, count: int) -> tuple[Stretch, bool]:
    """Read a range of this many numbers, and whether it has no gaps."""
    found = await tx.one("event_stretch", after=after, count=count)
    if found is None or not found["size"]:
        return Stretch(after, after), True
    return Stretch(found["last"], found["last_row"]), found["last"] - after == found["size"]


async def _read_page(tx: Tx, after: int, count: int, workspace: str | None) -> tuple[Stretch, bool, Sequence[Row]]:
    stretch, whole = await _last_of(tx, after, count)
    if stretch.last == after:
        return stretch, True, ()
    return stretch, whole, await _upto(tx, after, stretch, workspace) if whole else ()


async def _upto(tx: Tx, after: int, stretch: Stretch, workspace: str | None) -> Sequence[Row]:
    return await tx.all("events_upto", after=after, workspace=workspace, **stretch._asdict())
