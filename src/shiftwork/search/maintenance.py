"""Updates the index of words from the event log, in bounded batches, so that verbs need not do it.

During a burst it writes nothing until the log is a few seconds ahead. While the queue is busy, runs are short, so that
work has the processor; when it is quiet, the index catches up.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence

from shiftwork.engine import event_log
from shiftwork.engine.engine import Engine
from shiftwork.search import index
from shiftwork.store.store import Row, Store, Tx

Counts = dict[str, int]
PAGE = 500
"""Events per batch. Their texts are read and split into words outside the transaction that writes the index."""

MAX_PAGE = 2_000
"""Events per batch if the previous one changed no words, as when work is claimed and completed."""

MAX_PAGES = 200
"""Pages per run; the rest is left to the next run."""

TURN_SEC = 0.1
"""The length of a run while the queue is busy: a tenth of the time, with a run each second."""

BUSY = 5
"""The queue counts as busy if this many events arrive during one batch."""


BURST = 1_000
"""At this many events a second, work should have the whole processor. A search reads as many itself."""

LATE_SEC = 5.0
"""How far the index may fall behind in a burst before it is updated anyway."""


async def elect(tx: Tx, _engine: Engine) -> Counts:
    """One process at a time updates the index."""
    await tx.run("add_search_mark")
    return {}


async def fill(engine: Engine) -> Counts:
    """Index the new events of the log."""
    newest, waits = await engine.store.read(functools.partial(_look, engine=engine))
    if waits:
        return {}
    total, page = 0, PAGE
    turn = _Turn(engine.store, newest)
    for _ in range(MAX_PAGES):
        written = await _fill_page(engine, page)
        if written is None:
            break
        total += written
        page = PAGE if written else min(2 * page, MAX_PAGE)
        if await turn.is_over():
            break
    return {"indexed": total} if total else {}


async def _look(tx: Tx, engine: Engine) -> tuple[int, bool]:
    """The newest event, and whether a burst goes first: many events arrived since the last poll, and none is old."""
    newest, (seen, at) = await event_log.last(tx), engine.log_seen
    engine.log_seen = newest, tx.now
    if not at or newest - seen < BURST * max(1.0, tx.now - at):
        return newest, False
    oldest = await tx.one("event_at", seq=await index.read_mark(tx) + 1)
    return newest, oldest is not None and oldest["at"] > tx.now - LATE_SEC


class _Turn:
    """How long to update the index before work takes precedence again."""

    def __init__(self, store: Store, newest: int) -> None:
        self._store = store
        self._ends = time.perf_counter() + TURN_SEC
        self._newest = newest

    async def is_over(self) -> bool:
        """Whether the time is up and the log is growing."""
        if time.perf_counter() < self._ends:
            return False
        before, self._newest = self._newest, await self._store.read(event_log.last)
        return self._newest - before > BUSY


async def _fill_page(engine: Engine, page: int) -> int | None:
    """Index a batch; returns the number of tasks, or None if there is nothing more to read."""
    store = engine.store
    after = await store.read(index.read_mark)
    stretch = await event_log.settled(store, after, page)
    last = stretch.last
    if last == after:
        return None
    texts = await store.read(functools.partial(changed_texts, after=after, stretch=stretch))
    found = await asyncio.to_thread(lambda: [index.entry(row) for row in texts])  # lets other coroutines run
    return await store.run(functools.partial(index.write, after=after, last=last, found=found))


async def changed_texts(tx: Tx, after: int, stretch: event_log.Stretch) -> Sequence[Row]:
    """The index entries of the tasks in this part of the log."""
    return await index.read_texts(tx, await index.changed_tasks(tx, after, stretch))
