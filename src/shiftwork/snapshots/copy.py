"""Copies a queue or a snapshot into an empty queue, all or nothing, and verifies the copy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType

import msgspec

from shiftwork.model.errors import CopyDiffers, InputError, SnapshotDamaged, StoreUnsuitable
from shiftwork.snapshots import snapshot_file
from shiftwork.snapshots.row_batches import Digest, Progress, Source, Target, in_thread
from shiftwork.snapshots.snapshot_file import Head
from shiftwork.store.open_store import open_store


class Copied(msgspec.Struct, frozen=True):
    """The copied rows per table, and the checksum of all rows."""

    counts: dict[str, int]
    checksum: str

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


async def copy(source_url: str, target_url: str, *, verify: bool = False, progress: Progress | None = None) -> Copied:
    """Copy a whole queue, as it is now, into an empty one. `verify` reads the copy back before it is committed."""
    async with reading(source_url) as source:
        now = await _make(target_url)
        async with writing(target_url) as target:
            return await _fill(source, target, now, verify=verify, progress=progress)


async def restore(path: Path, target_url: str, *, verify: bool = False, progress: Progress | None = None) -> Copied:
    """Restore a snapshot into an empty queue; commits only if its rows match its header."""
    async with snapshot_file.reading(path) as snapshot:
        now = await _make(target_url)
        async with writing(target_url) as target:
            copied = await _fill(snapshot, target, now, verify=verify, progress=progress)
            if (copied.counts, copied.checksum) != (snapshot.head.counts, snapshot.head.checksum):
                raise SnapshotDamaged(f"{path} does not match its header", where=str(path))
            return copied


async def save(url: str, path: Path, created_at: float, progress: Progress | None = None) -> Head:
    """Write a whole queue, as it is now, into a file."""
    async with reading(url) as source:
        return await snapshot_file.write(source, path, created_at, progress)


async def checksum(url: str) -> Copied:
    """Count and hash the rows of a queue, to compare two idle queues."""
    async with reading(url) as source:
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


def reading(url: str) -> AbstractAsyncContextManager[Source]:
    """Open a queue to read all of it at one moment."""
    opened: AbstractAsyncContextManager[Source] = _kind(url).reading(url)
    return opened


def writing(url: str) -> AbstractAsyncContextManager[Target]:
    """Open a queue to fill, with a schema but no content; commits everything at the end, or nothing."""
    opened: AbstractAsyncContextManager[Target] = _kind(url).writing(url)
    return opened


def _kind(url: str) -> ModuleType:
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from shiftwork.snapshots import sqlite_copy  # noqa: PLC0415  # loaded only if used

        return sqlite_copy
    if scheme in {"postgresql", "postgres"}:
        try:
            from shiftwork.snapshots import postgres_copy  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            raise StoreUnsuitable(
                "the PostgreSQL driver is not installed", hint="pip install 'shiftwork[postgres]'"
            ) from error
        return postgres_copy
    raise InputError(
        f"{scheme or url!r} is not a kind of store", where="store", hint="Use sqlite:///file.db or postgresql://…"
    )
