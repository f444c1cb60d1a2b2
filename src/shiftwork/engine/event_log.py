"""The log of events, read so that no event is missed or seen twice, whatever the order of commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from shiftwork.store.store import Row, Store, Tx

_FAR = 2**61


class Part(NamedTuple):
    """Events in the order of their numbers, and the number up to which nothing more will come."""

    rows: Sequence[Row]
    last: int


async def read(store: Store, after: int, count: int, workspace: str | None = None) -> Part:
    """What is behind a number, of one workspace or of all. Anyone who continues from `last` sees every event once."""
    last, whole, rows = await store.read(lambda tx: _read_page(tx, after, count, workspace))
    if not whole:
        # A number is missing: its transaction is still open, or was rolled back. Wait for those open now.
        await store.settle_events()
        rows = await store.read(lambda tx: _upto(tx, after, last, workspace))
    return Part(rows, last)


async def settled(store: Store, after: int, count: int) -> int:
    """The number of the last of so many events behind a number, once nothing more will come up to it."""
    last, whole = await store.read(lambda tx: _last_of(tx, after, count))
    if not whole:
        await store.settle_events()
    return last


async def newest(store: Store) -> int:
    """The number behind which everything stands that is committed from now on."""
    seq = await store.read(last)
    await store.settle_events()  # a lower number that is still under way would come after now, and be missed
    return seq


async def last(tx: Tx, of: Literal["event", "alert"] = "event") -> int:
    """The highest number there is; lower ones may still come."""
    row = await tx.one(f"last_{of}")
    return int(row["seq"] or 0) if row else 0


async def read_alerts(store: Store, after: int, count: int) -> Part:
    """The same for alerts, of all workspaces: their numbers are taken under the lock of the events told with them."""
    rows = await store.read(lambda tx: tx.all("alerts_upto", after=after, last=after + _FAR, count=count))
    if not rows:
        return Part((), after)
    last = int(rows[-1]["seq"])
    if last - after != len(rows):
        await store.settle_events()
        rows = await store.read(lambda tx: tx.all("alerts_upto", after=after, last=last, count=last - after))
    return Part(rows, last)


async def _last_of(tx: Tx, after: int, count: int) -> tuple[int, bool]:
    """The last of so many numbers, and whether none before it is missing."""
    numbers = await tx.all("event_numbers", after=after, count=count)
    last = int(numbers[-1]["seq"]) if numbers else after
    return last, last - after == len(numbers)


async def _read_page(tx: Tx, after: int, count: int, workspace: str | None) -> tuple[int, bool, Sequence[Row]]:
    last, whole = await _last_of(tx, after, count)
    if last == after:
        return after, True, ()
    return last, whole, await _upto(tx, after, last, workspace) if whole else ()


async def _upto(tx: Tx, after: int, last: int, workspace: str | None) -> Sequence[Row]:
    return await tx.all("events_upto", after=after, last=last, workspace=workspace)
