"""Uploads and downloads of artifacts: first the bytes, then their row; never inside a verb.

Other parts of the queue store bytes before their own transaction, and refer to them inside it:

    artifact_id = await content.put_bytes(engine, caller, workspace, data, "application/json")
    ...                                                    # then, in the verb: `artifacts.hold` and `artifacts.use`
    data = await content.read_bytes(engine, workspace, artifact_id)
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from shiftwork.artifacts import artifact_rows as artifacts
from shiftwork.artifacts.artifact_rows import Content, Owner, StoredContent
from shiftwork.artifacts.blob_store import BlobStore, new_place
from shiftwork.artifacts.model import Artifact
from shiftwork.artifacts.spool import BLOCK, Source, Spooled, check_expected, in_blocks, spooled
from shiftwork.engine.engine import Caller, Engine, IdempotentRequest
from shiftwork.model.errors import ArtifactDamaged, ArtifactsUnavailable, ConflictError, Forbidden, InputError, NotFound
from shiftwork.store.store import Row, Tx

_HEX = 64


class Stored(NamedTuple):
    """Bytes at a place, with their expected size and digests."""

    place: str
    size: int
    digests: str


async def read_checked(blob_store: BlobStore, stored: Stored, start: int, end: int) -> AsyncIterator[bytes]:
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
        async for _ in read_checked(blob_store, stored, 0, stored.size):
            pass
    except ArtifactDamaged:
        return False
    return True


_REFUSED = (InputError, Forbidden, NotFound, ConflictError)
"""Errors that prove the row was not written; after any other error the bytes must stay."""

Run = Callable[..., Awaitable[Any]]
"""Runs one verb of the workspace in one transaction, as `Handle._run` does."""


def blob_store_of(engine: Engine) -> BlobStore:
    if engine.blob_store is None:
        raise ArtifactsUnavailable("this queue has no storage for artifacts", where="artifacts")
    return engine.blob_store


async def mark_of(engine: Engine) -> str:
    """The prefix that tells this queue's places from those of others in the same blob store."""
    if engine.mark is None:
        proposed = secrets.token_hex(8)
        engine.mark = await engine.store.run(lambda tx: artifacts.mark(tx, proposed))
    return engine.mark


async def put(
    engine: Engine,
    run: Run,
    workspace: str,
    source: Source,
    media_type: str,
    owner: Owner | None = None,
    expected: str | None = None,
    request: IdempotentRequest | None = None,
) -> Artifact:
    """Store content, and attach it to its owner if there is one. `expected` is the id it must have."""
    blob_store = blob_store_of(engine)
    most = (await engine.settings_cache.get(engine.store, workspace)).settings().bounds.artifact_bytes
    async with spooled(source, await blob_store.incoming(), most) as upload:
        check_expected(upload.sha256, expected)
        if request is not None:
            request.add(upload.sha256)
        return (await _keep(engine, blob_store, run, workspace, upload, media_type, owner)).artifact


async def _keep(
    engine: Engine,
    blob_store: BlobStore,
    run: Run,
    workspace: str,
    upload: Spooled,
    media_type: str,
    owner: Owner | None,
) -> StoredContent:
    """Store the bytes, unless they are already stored and intact; damaged ones are replaced."""
    damaged: str | None = None
    known = await engine.store.read(lambda tx: _known(tx, workspace, upload.sha256))
    if known is not None:
        if await is_whole(blob_store, stored(known)):
            kept: StoredContent | None = await run(artifacts.touch, workspace, upload.sha256, known["place"], owner)
            if kept is not None:
                return kept
        else:
            damaged = known["place"]
    place = new_place(await mark_of(engine), workspace, upload.sha256)
    await blob_store.keep(upload.file, place)
    content = Content(upload.sha256, upload.size, upload.digests, media_type)
    try:
        brought: StoredContent = await run(artifacts.keep, workspace, content, place, damaged, owner)
    except _REFUSED:
        await blob_store.remove([place])
        raise
    return brought


async def _known(tx: Tx, workspace: str, sha256: str) -> Row | None:
    return await tx.one("read_artifact", workspace=workspace, hash=sha256)


def stored(row: Row) -> Stored:
    return Stored(row["place"], row["size"], row["digests"])


async def stream(
    engine: Engine, workspace: str, artifact_id: str, start: int, end: int | None
) -> AsyncGenerator[bytes, None]:
    """Stream the bytes of an artifact or a part of it; each block is checked before it is yielded."""
    row = await engine.store.read(lambda tx: artifacts.find(tx, workspace, artifact_id))
    last = row["size"] if end is None else min(end, row["size"])
    async for block in read_checked(blob_store_of(engine), stored(row), start, last):
        yield block


async def put_bytes(engine: Engine, caller: Caller, workspace: str, content: bytes, media_type: str) -> str:
    """Store these bytes and return the id of their artifact; refer to it soon."""

    async def run(verb: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return await engine.store.run(functools.partial(_call, verb, engine, caller, args))

    return (await put(engine, run, workspace, content, media_type)).id


async def _call(verb: Callable[..., Awaitable[Any]], engine: Engine, caller: Caller, args: Any, tx: Tx) -> Any:
    return await verb(tx, engine, caller, *args)


async def read_bytes(engine: Engine, workspace: str, artifact_id: str) -> bytes:
    """Read a whole artifact into memory, for content known to be small."""
    return b"".join([block async for block in stream(engine, workspace, artifact_id, 0, None)])
