"""Copies a queue or a snapshot into an empty queue, all or nothing, and verifies the copy."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shiftwork.model.errors import CopyDiffers, SnapshotDamaged
from shiftwork.snapshots import endpoints, snapshot_file
from shiftwork.snapshots.row_batches import Digest, Progress, Source, Target, in_thread
from shiftwork.snapshots.snapshot_file import Head
from shiftwork.store.opening import open_store


class Copied(msgspec.Struct, frozen=True):
    """The copied rows per table, and the checksum of all rows."""

    counts: dict[str, int]
    checksum: str

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


async def copy(source_url: str, target_url: str, *, verify: bool = False, progress: Progress | None = None) -> Copied:
    """Copy a whole queue, as it is now, into an empty one. `verify` reads the copy back before it is committed."""
    async with endpoints.reading(source_url) as source:
        now = await _make(target_url)
        async with endpoints.writing(target_url) as target:
            return await _fill(source, target, now, verify=verify, progress=progress)


async def restore(path: Path, target_url: str, *, verify: bool = False, progress: Progress | None = None) -> Copied:
    """Restore a snapshot into an empty queue; commits only if its rows match its header."""
    async with snapshot_file.reading(path) as snapshot:
        now = await _make(target_url)
        async with endpoints.writing(target_url) as target:
            copied = await _fill(snapshot, target, now, verify=verify, progress=progress)
            if (copied.counts, copied.checksum) != (snapshot.head.counts, snapshot.head.checksum):
                raise SnapshotDamaged(f"{path} does not match its header", where=str(path))
            return copied


async def save(url: str, path: Path, created_at: float, progress: Progress | None = None) -> Head:
    """Write a whole queue, as it is now, into a file."""
    async with endpoints.reading(url) as source:
        return await snapshot_file.write(source, path, created_at, progress)


async def checksum(url: str) -> Copied:
    """Count and hash the rows of a queue, to compare two idle queues."""
    async with endpoints.reading(url) as source:
        return await _read_back(source)


async def _make(url: str) -> float:
    """Create the schema if there is none; returns the store's time."""
    store = await open_store(url)
    try:
        return store.now()
    finally:
        await store.close()


async def _fill(source: Source, target: Target, now: float, *, verify: bool, progress: Progress | None) -> Copied:
    digest = Digest()
    async for batch in source.batches():
        await in_thread(digest.add, batch)
        await target.write(batch)
        if progress is not None:
            progress(batch.table.name, digest.rows)
    copied = Copied(digest.counts, digest.checksum())
    if verify and (found := await _read_back(target)) != copied:
        raise CopyDiffers(_difference(copied, found))
    await target.finish(source.numbers, digest.counts, now)
    return copied


async def _read_back(end: Source | Target) -> Copied:
    digest = Digest()
    async for batch in end.batches():
        await in_thread(digest.add, batch)
    return Copied(digest.counts, digest.checksum())


def _difference(sent: Copied, found: Copied) -> str:
    names = sorted(sent.counts.keys() | found.counts.keys())
    uneven = [name for name in names if sent.counts.get(name) != found.counts.get(name)]
    return f"the row counts differ in {', '.join(uneven)}" if uneven else "the copy has different rows"
