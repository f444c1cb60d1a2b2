"""Streams an upload into a temporary file and hashes it, in bounded memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from shiftwork.artifacts.blob_store import as_store_error
from shiftwork.model.errors import InputError, TooLarge
from shiftwork.model.references import show_artifact

BLOCK = 1_048_576
"""Content is written, read and checked in blocks of this size."""

Source = bytes | Path | BinaryIO | AsyncIterable[bytes]
"""Accepted sources: bytes, the path of a file, an open file, or an async iterable of bytes."""


class Upload(NamedTuple):
    """Content to store, and the task it belongs to."""

    source: Source
    media_type: str
    name: str | None = None
    task: str | None = None
    token: str | None = None
    artifact_id: str | None = None
    """The id that the content must have, if known."""


class Spooled(NamedTuple):
    """Content in a temporary file, with its size and digests."""

    file: Path
    sha256: str
    size: int
    digests: str
    """The concatenated SHA-256 of each block, so that any block can be checked alone."""


@asynccontextmanager
async def spooled(source: Source, folder: Path, most: int) -> AsyncIterator[Spooled]:
    """Spool the content into a file in this folder; the file is always removed afterwards."""
    file = folder / secrets.token_hex(16)
    try:
        yield await _collect(parts_of(source), file, most)
    finally:
        await asyncio.shield(asyncio.to_thread(file.unlink, missing_ok=True))


async def _collect(parts: AsyncIterable[bytes], file: Path, most: int) -> Spooled:
    whole, size, digests = hashlib.sha256(), 0, []
    with as_store_error(str(file)):
        out = await asyncio.to_thread(_make, file)
    try:
        async for block in in_blocks(parts):
            size += len(block)
            if size > most:
                raise TooLarge(f"an artifact can have at most {most} bytes", where="content", hint=_HINT)
            digests.append(await asyncio.to_thread(_write, out, block, whole))
    finally:
        await asyncio.shield(asyncio.to_thread(_close, out))
    return Spooled(file, whole.hexdigest(), size, "".join(digests))


def _make(file: Path) -> BinaryIO:
    """Create the file readable only by its owner; it keeps this mode in the store."""
    return open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))


_HINT = "Split it, or raise the setting bounds.artifact_bytes."


def _write(out: BinaryIO, block: bytes, whole: hashlib._Hash) -> str:
    with as_store_error(out.name):
        out.write(block)
    whole.update(block)
    return hashlib.sha256(block).hexdigest()


def _close(out: BinaryIO) -> None:
    with as_store_error(out.name):
        out.close()


async def in_blocks(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Regroup the bytes into whole blocks; only the last can be shorter."""
    rest = bytearray()
    async for part in parts:
        rest += part
        while len(rest) >= BLOCK:
            yield bytes(rest[:BLOCK])
            del rest[:BLOCK]
    if rest:
        yield bytes(rest)


def parts_of(source: Source) -> AsyncIterable[bytes]:
    """Any source as an async iterable of bytes."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _of_bytes(bytes(source))
    if isinstance(source, Path):
        return _of_path(source)
    if isinstance(source, AsyncIterable):
        return source
    if hasattr(source, "read"):
        return _of_file(source)
    raise InputError(
        f"expected bytes, a pathlib.Path, a binary file or an async iterable of bytes; got {type(source).__name__}",
        where="content",
    )


async def _of_bytes(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _of_path(path: Path) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", where="content") from None
    try:
        async for part in _of_file(file):
            yield part
    finally:
        await asyncio.to_thread(file.close)


async def _of_file(file: BinaryIO) -> AsyncIterator[bytes]:
    while part := await asyncio.to_thread(_read, file):
        yield part


def _read(file: BinaryIO) -> bytes:
    try:
        part = file.read(BLOCK)
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror}", where="content") from None
    if not isinstance(part, bytes):
        raise InputError("the file was not opened in binary mode", where="content")
    return part


def check_expected(sha256: str, expected: str | None) -> None:
    """Refuse content whose id is not the expected one."""
    if expected is not None and show_artifact(sha256) != expected:
        raise InputError(
            f"the content is {show_artifact(sha256)}, not {expected}",
            where="artifact_id",
            hint="It was changed on the way, or the id belongs to other content; nothing was stored.",
        )
