"""Content of artifacts on its way in and out: bytes into the depot, then their row; nothing of it inside a verb.

Other parts of the queue that have bytes to keep do it before their own transaction, and refer to them inside it:

    artifact_id = await content.put_bytes(engine, caller, workspace, data, "application/json")
    ...                                                    # then, in the verb: `artifacts.hold` and `artifacts.use`
    data = await content.read_bytes(engine, workspace, artifact_id)
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from shiftwork.artifacts import checked
from shiftwork.artifacts.checked import Stored
from shiftwork.artifacts.depot import Depot, new_place
from shiftwork.artifacts.spool import Source, Spooled, spooled
from shiftwork.core.errors import ArtifactsUnavailable, ConflictError, Forbidden, InputError, NotFound
from shiftwork.core.references import show_artifact
from shiftwork.queue.content import artifacts
from shiftwork.queue.content.artifacts import Artifact, Content, Kept, Owner
from shiftwork.queue.engine import Caller, Engine, Once
from shiftwork.store.store import Row, Tx

_REFUSED = (InputError, Forbidden, NotFound, ConflictError)
"""After any other error the row may be there all the same, and the bytes must not go."""

Run = Callable[..., Awaitable[Any]]
"""Runs one verb of the workspace in one transaction, as `Handle._run` does."""


def depot_of(engine: Engine) -> Depot:
    if engine.depot is None:
        raise ArtifactsUnavailable("this queue has no place for artifacts", where="artifacts")
    return engine.depot


async def mark_of(engine: Engine) -> str:
    """By what this queue's places are known from those of others in the same depot."""
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
    once: Once | None = None,
) -> Artifact:
    """Keep content, and refer to it from its owner where there is one. `expected` is the id it must come to."""
    depot = depot_of(engine)
    most = (await engine.book.get(engine.store, workspace)).settings().bounds.artifact_bytes
    async with spooled(source, await depot.incoming(), most) as arrived:
        check_expected(arrived.sha256, expected)
        if once is not None:
            once.add(arrived.sha256)
        return (await _keep(engine, depot, run, workspace, arrived, media_type, owner)).artifact


def check_expected(sha256: str, expected: str | None) -> None:
    """Content whose id is known beforehand must come to it."""
    if expected is not None and show_artifact(sha256) != expected:
        raise InputError(
            f"the content is {show_artifact(sha256)}, not {expected}",
            where="artifact_id",
            mend="It was changed on the way, or the id is that of something else; nothing was kept.",
        )


async def _keep(
    engine: Engine, depot: Depot, run: Run, workspace: str, arrived: Spooled, media_type: str, owner: Owner | None
) -> Kept:
    """Bytes that lie there already, whole, are not kept twice; damaged ones are replaced."""
    damaged: str | None = None
    known = await engine.store.read(lambda tx: _known(tx, workspace, arrived.sha256))
    if known is not None:
        if await checked.is_whole(depot, stored(known)):
            kept: Kept | None = await run(artifacts.touch, workspace, arrived.sha256, known["place"], owner)
            if kept is not None:
                return kept
        else:
            damaged = known["place"]
    place = new_place(await mark_of(engine), workspace, arrived.sha256)
    await depot.keep(arrived.file, place)
    content = Content(arrived.sha256, arrived.size, arrived.digests, media_type)
    try:
        brought: Kept = await run(artifacts.keep, workspace, content, place, damaged, owner)
    except _REFUSED:
        await depot.remove([place])
        raise
    return brought


async def _known(tx: Tx, workspace: str, sha256: str) -> Row | None:
    return await tx.one("read_artifact", workspace=workspace, hash=sha256)


def stored(row: Row) -> Stored:
    return Stored(row["place"], row["size"], row["digests"])


async def stream(
    engine: Engine, workspace: str, artifact_id: str, start: int, end: int | None
) -> AsyncGenerator[bytes, None]:
    """The bytes of an artifact, or of a part of it, each block checked before it is handed on."""
    row = await engine.store.read(lambda tx: artifacts.find(tx, workspace, artifact_id))
    last = row["size"] if end is None else min(end, row["size"])
    async for block in checked.read(depot_of(engine), stored(row), start, last):
        yield block


async def put_bytes(engine: Engine, caller: Caller, workspace: str, content: bytes, media_type: str) -> str:
    """Keep these bytes and answer with the id of their artifact, to be referred to soon."""

    async def run(verb: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return await engine.store.run(functools.partial(_call, verb, engine, caller, args))

    return (await put(engine, run, workspace, content, media_type)).id


async def _call(verb: Callable[..., Awaitable[Any]], engine: Engine, caller: Caller, args: Any, tx: Tx) -> Any:
    return await verb(tx, engine, caller, *args)


async def read_bytes(engine: Engine, workspace: str, artifact_id: str) -> bytes:
    """All bytes of an artifact at once, for content that is known to be small."""
    return b"".join([block async for block in stream(engine, workspace, artifact_id, 0, None)])
