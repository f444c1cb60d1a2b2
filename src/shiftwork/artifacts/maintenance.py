"""Deletes unreferenced artifacts: first the rows, then the bytes.

A crash between the two leaves places recorded as garbage. A crash between an upload and its row leaves bytes without a
row, which are found by scanning all places, one page per run.
"""

from __future__ import annotations

import time

from shiftwork.artifacts import transfer
from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.engine.engine import Engine
from shiftwork.store.store import Tx

BATCH = 500
ORPHAN_SEC = 86_400.0
"""The minimum age of bytes without a row before removal: far longer than writing the row takes."""

Counts = dict[str, int]


async def collect(tx: Tx, engine: Engine) -> Counts:
    """Remove the rows of artifacts unreferenced for too long."""
    collected = 0
    for place in await tx.all("workspaces_with_idle"):
        settings = (await engine.settings_cache.load(tx, place["workspace"])).settings()
        before = tx.now - settings.artifacts.keep_unreferenced_sec
        old = [(row["hash"],) for row in await tx.all("lock_old_artifacts", **place, before=before, count=BATCH)]
        if not old:
            continue
        gone = await tx.all("delete_old_artifacts", **place, items=old)
        await tx.insert("insert_litter", [(row["place"], tx.now) for row in gone])
        wanted = sorted(set(old) - {(row["hash"],) for row in gone})
        if wanted:  # a use was added while the last one was being removed
            await tx.run("want_artifacts", **place, items=wanted)
        collected += len(gone)
    return {"collected": collected} if collected else {}


async def remove(engine: Engine) -> Counts:
    """Remove the bytes of collected artifacts and bytes without a row, if this process can reach them."""
    if engine.blob_store is None:
        return {}
    blob_store = transfer.blob_store_of(engine)
    counts = {"removed": await _clear(engine, blob_store), "orphans": await _sweep(engine, blob_store)}
    return {name: count for name, count in counts.items() if count}


async def _clear(engine: Engine, blob_store: BlobStore) -> int:
    litter = [row["place"] for row in await engine.store.read(lambda tx: tx.all("read_litter", count=BATCH))]
    if litter:
        await blob_store.remove(litter)
        await engine.store.run(lambda tx: tx.run("delete_litter", items=[(place,) for place in litter]))
    return len(litter)


async def _sweep(engine: Engine, blob_store: BlobStore) -> int:
    mark = await engine.store.read(lambda tx: tx.one("read_mark"))
    if mark is None:  # nothing was ever uploaded
        return 0
    before = time.time() - ORPHAN_SEC
    page = await blob_store.page(mark["mark"], engine.swept_to, BATCH)
    engine.swept_to = page[-1].place if len(page) == BATCH else None
    old = [(found.place,) for found in page if found.written_at < before]
    if not engine.others and await engine.store.read(lambda tx: tx.one("has_routes")) is not None:
        return 0  # a moved workspace may use these: only a process with all databases knows
    known: set[str] = set()
    for each in (engine, *engine.others):
        rows = await each.store.read(lambda tx: tx.all("known_places", items=old)) if old else []
        known |= {row["place"] for row in rows}
    orphans = sorted({place for (place,) in old} - known)
    await blob_store.remove(orphans)
    return len(orphans) + await blob_store.tidy(before)
