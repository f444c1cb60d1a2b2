"""Stores artifact bytes in a local folder; a file is durable before its row is written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from shiftwork.artifacts.blob_store import StoredBlob, as_store_error, check_place, is_place
from shiftwork.artifacts.spool import BLOCK
from shiftwork.model.errors import ArtifactDamaged
from shiftwork.store import crash_points

INCOMING = "incoming"


class FolderBlobStore:
    """A folder, created by the first upload."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}"
        self._folder = folder

    async def incoming(self) -> Path:
        """A folder on the same file system, so that a rename moves a file to its place."""
        return await asyncio.to_thread(self._make, self._folder / INCOMING)

    async def keep(self, file: Path, place: str) -> None:
        await asyncio.to_thread(self._keep, file, self._folder / check_place(place))

    def _keep(self, file: Path, place: Path) -> None:
        with as_store_error(str(place)):
            _flush(file)
        self._make(place.parent)
        with as_store_error(str(place)):
            crash_points.reach("before storing bytes")
            file.rename(place)
            crash_points.reach("after storing bytes")
            _flush(place.parent)

    def _make(self, folder: Path) -> Path:
        """Create the folder durably, so that a power failure cannot undo it."""
        with as_store_error(str(folder)):
            missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
            for path in reversed(missing):
                path.mkdir(exist_ok=True, mode=0o700)
                _flush(path.parent)
        return folder

    async def read(self, place: str, start: int, length: int) -> AsyncIterator[bytes]:
        file = await asyncio.to_thread(_open, self._folder / check_place(place))
        try:
            end = start + length
            while start < end and (part := await asyncio.to_thread(_part, file, start, min(BLOCK, end - start))):
                start += len(part)
                yield part
        finally:
            os.close(file)

    async def remove(self, places: Sequence[str]) -> None:
        def remove() -> None:
            for place in places:
                with as_store_error(place):
                    (self._folder / check_place(place)).unlink(missing_ok=True)

        await asyncio.to_thread(remove)

    async def page(self, mark: str, after: str | None, count: int) -> list[StoredBlob]:
        return await asyncio.to_thread(lambda: list(islice(self._files(mark, after or ""), count)))

    def _files(self, mark: str, after: str) -> Iterator[StoredBlob]:
        """Files in the order of their places; folders before the cursor are skipped."""
        for prefix in _sorted(self._folder / mark):
            for box in _sorted(prefix):
                if f"{mark}/{prefix.name}/{box.name}/~" < after:
                    continue
                for path in _sorted(box):
                    place = path.relative_to(self._folder).as_posix()
                    if place > after and is_place(place) and (found := _seen(path, place)):
                        yield found

    async def tidy(self, before: float) -> int:
        return await asyncio.to_thread(self._tidy, before)

    def _tidy(self, before: float) -> int:
        found = [(file, _seen(file, file.name)) for file in _sorted(self._folder / INCOMING)]
        old = [file for file, seen in found if seen and seen.written_at < before]
        for file in old:
            with as_store_error(str(file)):
                file.unlink(missing_ok=True)
        return len(old)

    async def close(self) -> None:
        """Nothing to close."""


def _flush(path: Path) -> None:
    """Flush a file or folder to disk: before that, a power failure can undo writes to it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _open(path: Path) -> int:
    try:
        # A symlink in its place could lead to any file.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ArtifactDamaged(f"the stored file cannot be opened: {error.strerror}") from error


def _part(file: int, start: int, length: int) -> bytes:
    try:
        return os.pread(file, length, start)
    except OSError as error:
        raise ArtifactDamaged(f"the stored file cannot be read: {error.strerror}") from error


def _sorted(folder: Path) -> list[Path]:
    with suppress(OSError):  # it was removed meanwhile, or is not a folder
        return sorted(folder.iterdir())
    return []


def _seen(path: Path, place: str) -> StoredBlob | None:
    with suppress(OSError):
        return StoredBlob(place, path.lstat().st_mtime)
    return None
