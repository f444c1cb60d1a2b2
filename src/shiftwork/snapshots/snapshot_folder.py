"""The folder of a queue's snapshots: takes, lists and prunes them."""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from shiftwork.model.errors import SnapshotDamaged, SnapshotFailed, StoreNewer, TooManyRequests
from shiftwork.snapshots import snapshot_file
from shiftwork.snapshots.copy import save
from shiftwork.snapshots.row_batches import in_thread
from shiftwork.snapshots.snapshot_file import Head

VARIABLE = "SHIFTWORK_SNAPSHOTS"
ABANDONED_SEC = 3600.0
"""The age at which the unfinished file of a killed process is removed."""

_END = ".snapshot"
_ASKED = ".asked.snapshot"
MIN_INTERVAL_SEC = 60.0
"""The minimum time between requested snapshots: each reads the whole queue and takes disk space."""

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z(\.asked)?\.snapshot")
"""The name contains the time; requested snapshots are marked, and counted separately from periodic ones."""


class SnapshotFile(NamedTuple):
    """A snapshot in the folder."""

    name: str
    size: int
    head: Head


class SnapshotFolder:
    """The folder for snapshots of one queue. `named` is false for the default folder."""

    def __init__(self, path: Path, *, named: bool = True) -> None:
        self.path = path
        self.named = named
        self._turn = asyncio.Lock()

    async def take(self, url: str, name: str, created_at: float) -> SnapshotFile:
        """Return the snapshot of this name; takes it if it does not exist."""
        path = self.path / name
        async with self._turn:  # a repeated request waits for the first
            if not path.exists():
                if _is_requested(path):
                    await in_thread(self._check_interval, created_at)
                await in_thread(self._make)
                await save(url, path, created_at)
        return await in_thread(_found, path)

    def _check_interval(self, now: float) -> None:
        newest = next((path.name for path in self._names() if _is_requested(path)), "")
        left = time_of(newest) + MIN_INTERVAL_SEC - now if newest else 0.0
        if 0 < left <= MIN_INTERVAL_SEC:  # one from the future, due to a wrong clock, refuses nothing
            raise TooManyRequests(
                f"a snapshot was taken less than {MIN_INTERVAL_SEC:g} seconds ago", where="snapshots", retry_after=left
            )

    async def all(self) -> list[SnapshotFile]:
        """All snapshots, newest first; skips damaged files and those of newer versions."""
        return await in_thread(self._all)

    async def keep(self, count: int, since: float | None = None) -> int:
        """Remove all but the newest ones of each kind, and none taken after `since`; returns how many."""
        return await in_thread(self._keep, count, since)

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotFailed(f"{self.path} cannot be created: {error.strerror}", where=str(self.path)) from error

    def _names(self) -> list[Path]:
        found = self.path.iterdir() if self.path.is_dir() else ()
        return sorted((path for path in found if _NAME.fullmatch(path.name)), reverse=True)

    def _all(self) -> list[SnapshotFile]:
        found = []
        for path in self._names():
            try:
                found.append(_found(path))
            except (SnapshotDamaged, StoreNewer):
                continue
        return found

    def _keep(self, count: int, since: float | None) -> int:
        kinds: dict[bool, list[Path]] = {False: [], True: []}
        for path in self._names():
            kinds[_is_requested(path)].append(path)
        too_many = [path for found in kinds.values() for path in found[count:]]
        old = [path for path in too_many if since is None or time_of(path.name) < since]
        parts = list(self.path.glob(f".*{snapshot_file.PART}"))
        try:
            abandoned = [part for part in parts if part.stat().st_mtime < time.time() - ABANDONED_SEC]
            for path in [*old, *abandoned]:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotFailed(f"old snapshots cannot be removed: {error.strerror}", where=str(self.path)) from error
        return len(old)


def _found(path: Path) -> SnapshotFile:
    head = snapshot_file.read_head(path)
    return SnapshotFile(path.name, path.stat().st_size, head)


def name_at(at: float, *, requested: bool = False) -> str:
    """The name for a time; names sort by time."""
    written = datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{written}{_ASKED if requested else _END}"


def time_of(name: str) -> float:
    """The time in a snapshot's name."""
    return datetime.strptime(name.partition("Z")[0] + "+0000", "%Y%m%dT%H%M%S.%f%z").timestamp()


def _is_requested(path: Path) -> bool:
    return path.name.endswith(_ASKED)


def open_folder(path: str | Path | None, store_url: str) -> SnapshotFolder | None:
    """The folder named here or by SHIFTWORK_SNAPSHOTS, or the one next to a SQLite file; otherwise None."""
    chosen = path or os.environ.get(VARIABLE) or None
    if chosen is not None:
        return SnapshotFolder(Path(chosen).absolute())
    scheme, _, rest = store_url.partition("://")
    file = rest.removeprefix("/")
    if scheme != "sqlite" or file in {"", ":memory:"}:
        return None
    return SnapshotFolder(Path(f"{file}.snapshots").absolute(), named=False)
