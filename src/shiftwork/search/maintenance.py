"""Keeps the index of words behind the event log, in bounded batches, so that no verb pays for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

from shiftwork.engine import event_log
from shiftwork.engine.engine import Engine
from shiftwork.search import index
from shiftwork.store.store import Row, Tx

Counts = dict[str, int]
PAGE = 500
"""Events of one batch. Their texts are read and cut into words outside of the transaction that writes the index."""

MAX_PAGES = 200
"""Of one turn; the rest has the next one."""


async def elect(tx: Tx, _engine: Engine) -> Counts:
    """One process at a time reads on."""
    await tx.run("add_search_mark")
    return {}


async def fill(engine: Engine) -> Counts:
    """Put what is new in the log into the index."""
    total = 0
    for _ in range(MAX_PAGES):
        written = await _fill_page(engine)
        if written is None:
            break
        total += written
    return {"indexed": total} if total else {}


async def _fill_page(engine: Engine) -> int | None:
    """How many tasks were written; None where there is nothing more to read."""
    store = engine.store
    after = await store.read(index.read_mark)
    last = await event_log.settled(store, after, PAGE)
    if last == after:
        return None
    texts = await store.read(functools.partial(changed_texts, after=after, last=last))
    found = await asyncio.to_thread(lambda: [index.entry(row) for row in texts])  # others have their turn meanwhile
    return await store.run(functools.partial(index.write, after=after, last=last, found=found))


async def changed_texts(tx: Tx, after: int, last: int) -> Sequence[Row]:
    """What the tasks are found by that this part of the log is about."""
    return await index.read_texts(tx, await index.changed_tasks(tx, after, last))
