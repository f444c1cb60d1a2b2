"""How many finished tasks there are, without reading them: sums that a job advances behind the event log.

At any moment the sums, what the log says behind their mark, and `count_changes` together are the number of rows. All
three are read in one snapshot. The mark moves in the transaction that adds to the sums, and only to where nothing more
will be committed, so that an event is either in the sums or behind the mark. Verbs that end tasks write nothing for it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from shiftwork.engine import event_log
from shiftwork.engine.event_log import Stretch
from shiftwork.store.store import Row, Store, Tx

STRETCH = 5_000
"""Events that are counted at once."""

MAX_STRETCHES = 200
"""Of one turn; the rest has the next one."""

TAIL = 20_000
"""Events behind the mark that a reader counts itself. Where there are more, no job has run: it reads all tasks."""


class Tally(NamedTuple):
    """One kind of rows that are counted."""

    workspace: str
    place: str
    type: str
    status: str
    tier: int


Sums = Counter[Tally]


class Mark(NamedTuple):
    """How far the log is counted, whether the sums are right, and a number that moves when that changes."""

    read_to: int
    whole: bool
    generation: int


async def read(tx: Tx, workspace: str | None) -> Sums | None:
    """The rows there are of finished tasks, archive and tombstones; None while the sums are not known."""
    mark = await _mark(tx, "read_count_mark")
    if mark is None or not mark.whole:
        return None
    last = await event_log.last(tx)
    return await _read(tx, mark, last, workspace) if last - mark.read_to <= TAIL else None


async def advance(store: Store) -> int:
    """Count what is new in the log, stretch by stretch; answers how many events that was."""
    await _begin(store)
    total = 0
    for _ in range(MAX_STRETCHES):
        moved = await _advance(store)
        if not moved:
            break
        total += moved
    return total


async def _begin(store: Store) -> None:
    """Start at the end of the log: what stands before it is in the rows."""
    if await store.read(read_mark) is None:
        newest = await event_log.newest(store)
        await store.run(lambda tx: tx.run("add_count_mark", read_to=newest))


async def make_whole(store: Store) -> None:
    """Read everything where the sums are not known."""
    mark = await store.read(read_mark)
    if mark is not None and not mark.whole:
        await repair(store)


async def repair(store: Store) -> bool:
    """Add to the sums what they differ by; False where another process did, or rows came that no event tells of.

    The difference stays the same while others work, since the sums and the log together say what changes.
    """
    await _begin(store)
    mark, wrong = await store.read(difference)
    return await store.run(functools.partial(_correct, mark=mark, wrong=wrong))


async def difference(tx: Tx) -> tuple[Mark, Sums]:
    """By how much the rows exceed what is kept of them."""
    mark = await _mark(tx, "read_count_mark") or Mark(0, whole=False, generation=0)
    await tx.run("read_whole_tables")
    found = _summed(await tx.all("finished_counts"))
    found.subtract(await _read(tx, mark, await event_log.last(tx), None))
    return mark, Counter({kept: total for kept, total in found.items() if total})


async def _correct(tx: Tx, mark: Mark, wrong: Sums) -> bool:
    now = await _mark(tx, "lock_count_mark")
    if now is None or now.generation != mark.generation:
        return False
    await _add(tx, wrong)
    await tx.run("trust_counts")
    return True


async def _advance(store: Store) -> int:
    mark = await store.read(read_mark)
    if mark is None:
        return 0
    stretch = await event_log.settled(store, mark.read_to, STRETCH)
    ended = await store.read(functools.partial(_ended, after=mark.read_to, stretch=stretch))
    moved = functools.partial(_keep, mark=mark, last=stretch.last, ended=ended)
    return stretch.last - mark.read_to if await store.run(moved) else 0


async def _keep(tx: Tx, mark: Mark, last: int, ended: Sums) -> bool:
    """Add what a stretch comes to, and what was removed up to its end; False where another process did."""
    now = await _mark(tx, "lock_count_mark")
    if now is None or now.read_to != mark.read_to:
        return False
    ended.update(_summed(await tx.all("settle_changes", read_to=last)))
    await _add(tx, ended)
    await tx.run("move_count_mark", read_to=last)
    return True


async def _read(tx: Tx, mark: Mark, last: int, workspace: str | None) -> Sums:
    sums = _summed(await tx.all("read_count_sums", workspace=workspace))
    sums.update(_summed(await tx.all("changed_counts", workspace=workspace)))
    sums.update(await _ended(tx, mark.read_to, Stretch(last, last), workspace))
    return sums


async def _ended(tx: Tx, after: int, stretch: Stretch, workspace: str | None = None) -> Sums:
    rows = await tx.all("ended_counts", after=after, workspace=workspace, **stretch._asdict())
    return _summed({**row, "place": "tasks"} for row in rows)


def _summed(rows: Iterable[Row]) -> Sums:
    sums: Sums = Counter()
    for row in rows:
        sums[Tally(row["workspace"], row["place"], row["type"], row["status"], row["tier"])] += int(row["total"])
    return sums


async def _add(tx: Tx, sums: Sums) -> None:
    items = [(*kept, total) for kept, total in sorted(sums.items()) if total]
    if items:
        await tx.run("add_count_sums", items=items)


async def read_mark(tx: Tx) -> Mark | None:
    """Where counting stands; None before it began."""
    return await _mark(tx, "read_count_mark")


async def _mark(tx: Tx, statement: str) -> Mark | None:
    row = await tx.one(statement)
    return Mark(int(row["read_to"]), bool(row["whole"]), int(row["generation"])) if row else None
