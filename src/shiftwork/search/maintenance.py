"""Keeps the index of words behind the event log, in bounded batches, so that no verb pays for it.

In a burst nothing is written until the log is a few seconds ahead. While the queue is busy a turn is short, so that
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
"""Events of one batch. Their texts are read and cut into words outside of the transaction that writes the index."""

MAX_PAGE = 2_000
"""Events of one batch where those before it changed no words, as while work is claimed and completed."""

MAX_PAGES = 200
"""Pages per run; the rest is left to the next run."""

TURN_SEC = 0.1
"""The length of a run while the queue is busy: a tenth of the time, with a run each second."""

BUSY = 5
"""Events that come during one batch and say that it is."""


BURST = 1_000
"""Events a second that say that work should have the whole processor. A search looks through as many itself."""

LATE_SEC = 5.0
"""In a burst the index may be this far behind before a turn is taken all the same."""


async def elect(tx: Tx, _engine: Engine) -> Counts:
    """One process at a time reads on."""
    await tx.run("add_search_mark")
    return {}


async def fill(engine: Engine) -> Counts:
    """Put what is new in the log into the index."""
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
    """The newest event, and whether a burst goes first: since the last look many came, and none is old."""
    newest, (seen, at) = await event_log.last(tx), engine.log_seen
    engine.log_seen = newest, tx.now
    if not at or newest - seen < BURST * max(1.0, tx.now - at):
        return newest, False
    oldest = await tx.one("event_at", seq=await index.read_mark(tx) + 1)
    return newest, oldest is not None and oldest["at"] > tx.now - LATE_SEC


class _Turn:
    """How long the index is filled before the work goes first again."""

    def __init__(self, store: Store, newest: int) -> None:
        self._store = store
        self._ends = time.perf_counter() + TURN_SEC
        self._newest = newest

    async def is_over(self) -> bool:
        """Whether it has taken its time, and the log grows meanwhile."""
        if time.perf_counter() < self._ends:
            return False
        before, self._newest = self._newest, await self._store.read(event_log.last)
        return self._newest - before > BUSY


async def _fill_page(engine: Engine, page: int) -> int | None:
    """How many tasks were written; None where there is nothing more to read."""
    store = engine.store
    after = await store.read(index.read_mark)
    stretch = await event_log.settled(store, after, page)
    last = stretch.last
    if last == after:
        return None
    texts = await store.read(functools.partial(changed_texts, after=after, stretch=stretch))
    found = await asyncio.to_thread(lambda: [index.entry(row) for row in texts])  # others have their turn meanwhile
    return await store.run(functools.partial(index.write, after=after, last=last, found=found))


async def changed_texts(tx: Tx, after: int, stretch: event_log.Stretch) -> Sequence[Row]:
    """What the tasks are found by that this part of the log is about."""
    return await index.read_texts(tx, await index.changed_tasks(tx, after, stretch))
