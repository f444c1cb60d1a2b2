"""The folder of a queue's snapshots: takes one, lists them, keeps the newest."""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from shiftwork.copying import file
from shiftwork.copying.content import in_thread
from shiftwork.copying.copy import save
from shiftwork.copying.file import Head
from shiftwork.core.errors import SnapshotDamaged, SnapshotFailed, StoreNewer

VARIABLE = "SHIFTWORK_SNAPSHOTS"
ABANDONED_SEC = 3600.0
"""What a killed process left half written goes when it is so old."""

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z\.snapshot")


class Found(NamedTuple):
    """A snapshot in the folder."""

    name: str
    size: int
    head: Head


class SnapshotFolder:
    """Where snapshots of one queue lie. `named` is false where it is only the place that suggests itself."""

    def __init__(self, path: Path, *, named: bool = True) -> None:
        self.path = path
        self.named = named
        self._turn = asyncio.Lock()

    async def take(self, url: str, name: str, created_at: float) -> Found:
        """The snapshot of this name, taken now unless it is there."""
        path = self.path / name
        async with self._turn:  # a request that is sent again waits for what it began
            if not path.exists():
                await in_thread(self._make)
                await save(url, path, created_at)
        return await in_thread(_found, path)

    async def all(self) -> list[Found]:
        """The newest first. What is damaged or of a newer version is passed over."""
        return await in_thread(self._all)

    async def keep(self, count: int) -> int:
        """Remove all but the newest ones; how many went."""
        return await in_thread(self._keep, count)

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotFailed(f"{self.path} cannot be made: {error.strerror}", where=str(self.path)) from error

    def _names(self) -> list[Path]:
        found = self.path.iterdir() if self.path.is_dir() else ()
        return sorted((path for path in found if _NAME.fullmatch(path.name)), reverse=True)

    def _all(self) -> list[Found]:
        found = []
        for path in self._names():
            try:
                found.append(_found(path))
            except (SnapshotDamaged, StoreNewer):
                continue
        return found

    def _keep(self, count: int) -> int:
        old = self._names()[count:]
        parts = list(self.path.glob(f".*{file.PART}"))
        try:
            abandoned = [part for part in parts if part.stat().st_mtime < time.time() - ABANDONED_SEC]
            for path in [*old, *abandoned]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotFailed(f"old ones cannot be removed: {error.strerror}", where=str(self.path)) from error
        return len(old)


def _found(path: Path) -> Found:
    head = file.read_head(path)
    return Found(path.name, path.stat().st_size, head)


def name_at(at: float) -> str:
    """Names sort as their times do."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%S.%fZ.snapshot")


def open_folder(path: str | Path | None, store_url: str) -> SnapshotFolder | None:
    """The folder named here or by SHIFTWORK_SNAPSHOTS, or the one beside a SQLite file; else none."""
    chosen = path or os.environ.get(VARIABLE) or None
    if chosen is not None:
        return SnapshotFolder(Path(chosen).absolute())
    scheme, _, rest = store_url.partition("://")
    beside = rest.removeprefix("/")
    if scheme != "sqlite" or beside in {"", ":memory:"}:
        return None
    return SnapshotFolder(Path(f"{beside}.snapshots").absolute(), named=False)
