"""Reads content back and verifies each block before it returns it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.artifacts.spool import BLOCK, in_blocks
from shiftwork.model.errors import ArtifactDamaged

_HEX = 64


class Stored(NamedTuple):
    """Bytes at a place, with their expected size and digests."""

    place: str
    size: int
    digests: str


async def read(blob_store: BlobStore, stored: Stored, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes from `start` up to `end`. Whole blocks are read and checked, then cut to the range."""
    if start >= end:
        return
    at = start - start % BLOCK
    upto = min(stored.size, end + -end % BLOCK)
    async for block in in_blocks(blob_store.read(stored.place, at, upto - at)):
        await _check(stored, at, block)
        yield block[max(0, start - at) : end - at]
        at += len(block)
    if at != upto:
        raise ArtifactDamaged(f"the stored file ends after {at} of {stored.size} bytes")


async def _check(stored: Stored, at: int, block: bytes) -> None:
    place = at // BLOCK * _HEX
    found = await asyncio.to_thread(hashlib.sha256, block)
    if found.hexdigest() != stored.digests[place : place + _HEX]:
        raise ArtifactDamaged(f"the stored file differs from the upload between bytes {at} and {at + len(block)}")


async def is_whole(blob_store: BlobStore, stored: Stored) -> bool:
    """Whether all of it can be read unchanged."""
    try:
        async for _ in read(blob_store, stored, 0, stored.size):
            pass
    except ArtifactDamaged:
        return False
    return True
