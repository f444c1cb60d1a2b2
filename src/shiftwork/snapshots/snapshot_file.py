"""A snapshot file: a human-readable header, and a compressed body of rows.

The header has a fixed size, so that it can be written last, when counts and checksum are known. It contains the hash of
the body and, in its first line, its own hash: a file with any changed byte is refused before a row is read. The
checksum of the rows alone would miss some changes, since the same rows can be compressed in many ways.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from shiftwork.model.errors import SnapshotDamaged, SnapshotFailed, StoreNeedsMigration, StoreNewer, StoreUnsuitable
from shiftwork.snapshots.row_batches import Batch, Digest, Progress, Schema, Source, in_thread
from shiftwork.store import crash_points, migrate
from shiftwork.store.catalogue import tables

BufferedFile = BufferedRandom | BufferedReader
FORMAT = 1
HEAD_BYTES = 16_384
LEVEL = 1
"""The compression level: snapshots are frequent, so speed matters more than size."""

PART = ".part"
_READ = 1 << 18
_MAX_SIZE = 1 << 30
_LENGTH = struct.Struct(">I")
_MAGIC = "shiftwork snapshot"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a snapshot."""

    created_at: float
    """The store's time of the snapshot."""

    schema: Schema
    counts: dict[str, int]
    numbers: dict[str, int]
    checksum: str
    body: str | None = None
    """The hash of everything after the header; None in files of older versions."""

    @property
    def schema_name(self) -> str:
        return "{:04d}_{}".format(*self.schema[-1][:2]) if self.schema else ""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """Some rows of one table; the last frame has no table."""

    table: str
    rows: list[msgspec.Raw]


async def write(source: Source, path: Path, created_at: float, progress: Progress | None = None) -> Head:
    """Write a whole queue into a file, which appears only when it is complete and on disk."""
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    with _reporting_errors(path):
        try:
            head = await _write(source, part, created_at, progress)
            await in_thread(_move, part, path)
        finally:
            part.unlink(missing_ok=True)
    return head


async def _write(source: Source, part: Path, created_at: float, progress: Progress | None) -> Head:
    digest = Digest()
    with os.fdopen(_create(part), "w+b") as file:
        file.write(bytes(HEAD_BYTES))
        packer = zlib.compressobj(LEVEL)
        async for batch in source.batches():
            await in_thread(_put, file, packer, digest, batch)
            if progress is not None:
                progress(batch.table.name, digest.rows)
        file.write(packer.compress(_frame("", [])) + packer.flush())
        head = Head(
            created_at=created_at,
            schema=source.schema,
            counts=digest.counts,
            numbers=source.numbers,
            checksum=digest.checksum(),
            body=await in_thread(_body_hash, file),
        )
        file.seek(0)
        file.write(_write_head(head))
        file.flush()
        await in_thread(os.fsync, file.fileno())
    return head


def _create(part: Path) -> int:
    """Create a file readable only by its owner: a queue contains private data and token hashes."""
    return os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def _put(file: BufferedFile, packer: Any, digest: Digest, batch: Batch) -> None:
    digest.add(batch)
    file.write(packer.compress(_frame(batch.table.name, [msgspec.Raw(row) for row in batch.packed])))


def _frame(table: str, rows: list[msgspec.Raw]) -> bytes:
    packed = msgspec.msgpack.encode(Frame(table, rows))
    return _LENGTH.pack(len(packed)) + packed


def _body_hash(file: BufferedFile) -> str:
    """Hash everything after the header, and seek back to its end."""
    file.seek(HEAD_BYTES)
    found = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(HEAD_BYTES)
    return found


def _write_head(head: Head) -> bytes:
    text = msgspec.json.encode(head)
    rest = text.ljust(HEAD_BYTES - len(_first_line(b"")) - 1) + b"\n"
    whole = _first_line(rest) + rest
    if len(whole) != HEAD_BYTES:
        raise SnapshotFailed(
            f"the header of the snapshot needs {len(text)} bytes, more than the {HEAD_BYTES} it can have"
        )
    return whole


def _first_line(rest: bytes) -> bytes:
    return f"{_MAGIC} {FORMAT} {hashlib.sha256(rest).hexdigest()}\n".encode()


def _move(part: Path, path: Path) -> None:
    """Move the file to its place durably, including the folder's entry."""
    crash_points.reach("before placing a snapshot")
    part.replace(path)
    crash_points.reach("after placing a snapshot")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _reporting_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SnapshotFailed(f"{path} cannot be written: {error.strerror or error}", where=str(path)) from error


def read_head(path: Path) -> Head:
    """Read the header of a snapshot."""
    with _opened(path) as file:
        return _read_head(file, path)


def _read_head(file: BufferedFile, path: Path) -> Head:
    raw = file.read(HEAD_BYTES)
    first, _, rest = raw.partition(b"\n")
    words = first.decode("ascii", "replace").rsplit(" ", 2)
    if words[0] != _MAGIC or len(words) != 3:
        raise SnapshotDamaged(f"{path} is not a snapshot", where=str(path))
    if words[1].isdecimal() and int(words[1]) > FORMAT:
        raise StoreNewer(f"{path} was written by a newer Shiftwork", where=str(path), hint="Upgrade this program.")
    if len(raw) != HEAD_BYTES or _first_line(rest).rstrip() != first:
        raise SnapshotDamaged(f"the header of {path} was changed or truncated", where=str(path))
    return msgspec.json.decode(rest, type=Head)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedFile]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise SnapshotDamaged(f"{path} cannot be read: {error.strerror or error}", where=str(path)) from error


@asynccontextmanager
async def reading(path: Path) -> AsyncIterator[Snapshot]:
    """Open a snapshot with this version's schema for reading."""
    with _opened(path) as file:
        head = _read_head(file, path)
        refuse_other_schema(head, path)
        if head.body is not None and head.body != await in_thread(_body_hash, file):
            raise SnapshotDamaged(f"{path} was changed or truncated", where=str(path))
        yield Snapshot(file, path, head)


def refuse_other_schema(head: Head, path: Path) -> None:
    """Refuse a snapshot with other tables than this version's, since rows are not converted."""
    ours = tuple((m.number, m.name, m.checksum) for m in migrate.sources())
    if migrate.is_same_schema(head.schema, ours):
        return
    if head.schema and head.schema[-1][0] > ours[-1][0]:
        raise StoreNewer(
            f"{path} has the schema {head.schema_name}, which this version does not know",
            where=str(path),
            hint="Upgrade this program.",
        )
    if head.schema == ours[: len(head.schema)]:
        raise StoreNeedsMigration(
            f"{path} has the older schema {head.schema_name}",
            where=str(path),
            hint="Restore it with the version that made it, then run `shiftwork migrate` with this one.",
        )
    raise StoreUnsuitable(f"{path} was made by a development version", where=str(path), hint="Use that version.")


class Snapshot:
    """A file as the source of a copy. It is verified to its end before the copy is committed."""

    def __init__(self, file: BufferedFile, path: Path, head: Head) -> None:
        self.head = head
        self.schema = head.schema
        self.numbers = head.numbers
        self._body = _Body(file, path)

    async def batches(self) -> AsyncIterator[Batch]:
        while batch := await in_thread(self._body.batch):
            yield batch


class _Body:
    """The rows of a file, frame by frame."""

    def __init__(self, file: BufferedFile, path: Path) -> None:
        self._file = file
        self._path = path
        self._packer = zlib.decompressobj()
        self._left = b""
        self._tables = {table.name: table for table in tables()}

    def batch(self) -> Batch | None:
        try:
            (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
            if length > _MAX_SIZE:
                raise self._damaged()
            frame = msgspec.msgpack.decode(self._take(length), type=Frame)
            if not frame.table:
                self._check_end()
                return None
            rows = [msgspec.msgpack.decode(row) for row in frame.rows]
            return Batch(self._tables[frame.table], rows, [bytes(row) for row in frame.rows])
        except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, KeyError, OSError):
            raise self._damaged() from None

    def _check_end(self) -> None:
        """Read to the end, where the compressed stream verifies itself and nothing may follow."""
        while not self._packer.eof:
            if self._more():
                raise self._damaged()
        if self._left or self._packer.unused_data or self._file.read(1):
            raise self._damaged()

    def _take(self, count: int) -> bytes:
        parts, have = [self._left], len(self._left)
        while have < count:
            part = self._more()
            parts.append(part)
            have += len(part)
        whole = b"".join(parts)
        self._left = whole[count:]
        return whole[:count]

    def _more(self) -> bytes:
        raw = self._packer.unconsumed_tail or self._file.read(_READ)
        if not raw:
            raise self._damaged()
        return self._packer.decompress(raw, _READ)

    def _damaged(self) -> SnapshotDamaged:
        return SnapshotDamaged(f"{self._path} was changed or truncated", where=str(self._path))
