"""Counts finished tasks without reading them: a job advances sums behind the event log.

At any moment, the sums, the events after their mark, and `count_changes` add up to the number of rows. All three are
read in one snapshot. The mark moves in the transaction that adds to the sums, and only up to the point where no more
events can be committed, so that an event is either in the sums or after the mark. Verbs that end tasks write nothing
extra.
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
"""The most events counted at once."""

MAX_STRETCHES = 200
"""The most per run; the next run counts the rest."""

TAIL = 20_000
"""The most events after the mark that a reader counts itself.

If there are more, no job has run, and it reads all tasks.
"""


class Tally(NamedTuple):
    """One kind of counted rows."""

    workspace: str
    place: str
    type: str
    status: str
    tier: int


Sums = Counter[Tally]


class Mark(NamedTuple):
    """How far the log is counted, whether the sums are right, and a number that changes with that."""

    read_to: int
    whole: bool
    generation: int


async def read(tx: Tx, workspace: str | None) -> Sums | None:
    """The numbers of finished tasks, archived tasks and tombstones; None while the sums are unknown."""
    mark = await _mark(tx, "read_count_mark")
    if mark is None or not mark.whole:
        return None
    last = await event_log.last(tx)
    return await _read(tx, mark, last, workspace) if last - mark.read_to <= TAIL else None


async def advance(store: Store) -> int:
    """Count the events of the log so far, stretch by stretch; returns how many."""
    await _begin(store)
    total = 0
    for _ in range(MAX_STRETCHES):
        moved = await _advance(store)
        total += moved
        if moved < STRETCH:  # the end; while work is done, there would always be a few more
            break
    return total


async def _begin(store: Store) -> None:
    """Start at the end of the log: earlier events are in the rows."""
    if await store.read(read_mark) is None:
        newest = await event_log.newest(store)
        await store.run(lambda tx: tx.run("add_count_mark", read_to=newest))


async def make_whole(store: Store) -> None:
    """Read all rows if the sums are unknown."""
    mark = await store.read(read_mark)
    if mark is not None and not mark.whole:
        await repair(store)


async def repair(store: Store) -> bool:
    """Add the difference to the sums; False if another process did, or if rows came without an event.

    The difference does not change while others work, because the sums and the log together follow every change.
    """
    await _begin(store)
    mark, wrong = await store.read(difference)
    return await store.run(functools.partial(_correct, mark=mark, wrong=wrong))


async def difference(tx: Tx) -> tuple[Mark, Sums]:
    """By how much the rows exceed the counts kept of them."""
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
    """Add the sums of a stretch, and the rows removed up to its end; False if another process did, or if rows came or
    went without an event.
    """
    now = await _mark(tx, "lock_count_mark")
    if now is None or (now.read_to, now.generation) != (mark.read_to, mark.generation):
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
    """How far counting has come; None before it began."""
    return await _mark(tx, "read_count_mark")


async def _mark(tx: Tx, statement: str) -> Mark | None:
    row = await tx.one(statement)
    return Mark(int(row["read_to"]), bool(row["whole"]), int(row["generation"])) if row else None
