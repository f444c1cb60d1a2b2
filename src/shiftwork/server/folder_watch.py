"""Watches a folder for file triggers, by content: rewriting a file unchanged is not a change."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
import stat
import time
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from shiftwork.model.errors import ConflictError, InputError, ShiftworkError
from shiftwork.queue import Queue
from shiftwork.store import crash_points
from shiftwork.triggers import watched_files
from shiftwork.triggers.model import Files
from shiftwork.triggers.policy import is_file
from shiftwork.triggers.watched_files import ChangedFile, Watcher

log = logging.getLogger("shiftwork.server")
LOOK_EVERY_SEC = 1.0
MAX_FILES = 10_000
_CHUNK = 1 << 20


class Mark(NamedTuple):
    """Attributes of a file that change when it is written."""

    written_ns: int
    size: int
    changed_at: float
    """When it was last written, renamed or moved here. Copies can preserve the modification time, but not this one."""


class FolderScan(NamedTuple):
    """The result of one scan of the folder."""

    marks: dict[str, Mark]
    unseen: frozenset[str]
    """Files and folders that could not be read: their contents may have changed or been removed."""
    device: int

    def hides(self, path: str) -> bool:
        return bool(self.unseen) and any(str(each) in self.unseen for each in [path, *PurePosixPath(path).parents])


def check_folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"{name} is not a folder", where="--watch")
    return folder.resolve()


class Watching:
    """Scans a folder periodically. A file counts once two scans found it unchanged: before, it may still be written."""

    def __init__(self, queue: Queue, folder: Path) -> None:
        self._engine = queue.engine
        self._folder = folder
        self._marks: dict[str, Mark] = {}
        self._hashes: dict[str, tuple[Mark, str]] = {}
        self._unreadable: dict[str, Mark] = {}
        self._device: int | None = None

    async def run_forever(self) -> None:
        while True:
            try:
                await self.scan()
            except (ShiftworkError, OSError) as error:
                log.warning("cannot scan the files of %s: %s", self._folder, error)
            await asyncio.sleep(LOOK_EVERY_SEC)

    async def scan(self) -> int:
        """Scan once; returns how many triggers fired. A missing folder is an error, not a removal of its files."""
        watchers = await self._engine.store.read(watched_files.watchers)
        if not watchers:
            return 0
        scan = await asyncio.to_thread(self._scan)
        fired = 0
        for watcher in watchers:
            fired += await self._fire_changes(watcher, scan)
        self._marks = scan.marks
        self._hashes = {path: known for path, known in self._hashes.items() if path in scan.marks}
        self._unreadable = {path: mark for path, mark in self._unreadable.items() if path in scan.marks}
        return fired

    def _scan(self) -> FolderScan:
        scan = _scan_folder(self._folder)
        if len(scan.marks) > MAX_FILES:
            raise InputError(f"more than {MAX_FILES} files to be watched", where="--watch")
        if not scan.marks and self._device not in {None, scan.device}:
            raise OSError("an empty folder on another device has taken its place; is its disk unmounted?")
        self._device = scan.device
        return scan

    async def _fire_changes(self, watcher: Watcher, scan: FolderScan) -> int:
        on = watcher.trigger.on
        assert isinstance(on, Files)
        mine = {path: mark for path, mark in scan.marks.items() if is_file(on, path)}
        if not watcher.looked:
            await self._record_existing(watcher, mine)
            return 0
        found = [*await self._changed(watcher, mine), *self._removed(watcher, scan)]
        return sum([await self._fire(watcher, seen) for seen in found])

    async def _record_existing(self, watcher: Watcher, mine: dict[str, Mark]) -> None:
        """Record the files that existed when the trigger was saved. Later ones are reported by the next scan."""
        since_saved = self._engine.store.now() - watcher.saved_at
        saved_at = time.time() - since_saved  # by the clock that stamps files
        old = sorted((path, mark) for path, mark in mine.items() if mark.changed_at <= saved_at)
        hashes = [(path, await self._hash(path, mark)) for path, mark in old]
        there = [(path, sha256) for path, sha256 in hashes if sha256 is not None]
        first = functools.partial(watched_files.record_existing, trigger_id=watcher.trigger.id, files=there)
        await crash_points.named("watched files", self._engine.store.run(first))

    async def _changed(self, watcher: Watcher, mine: dict[str, Mark]) -> list[ChangedFile]:
        """Return the files that were added or changed."""
        found = []
        for path, mark in sorted(mine.items()):
            if self._marks.get(path) != mark:
                continue  # it may not be written completely
            sha256 = await self._hash(path, mark)
            before = watcher.known.get(path)
            if sha256 is not None and sha256 != before:
                found.append(ChangedFile(path, "added" if before is None else "changed", sha256, mark.size))
        return found

    def _removed(self, watcher: Watcher, scan: FolderScan) -> list[ChangedFile]:
        """Return the files that existed, but were missing in the last two scans."""
        known = sorted(path for path, sha256 in watcher.known.items() if sha256 is not None)
        gone = [path for path in known if path not in scan.marks and path not in self._marks and not scan.hides(path)]
        return [ChangedFile(path, "removed", None, 0) for path in gone]

    async def _hash(self, path: str, mark: Mark) -> str | None:
        """Return the hash of a file, or None if it cannot be read: it is skipped and does not block others."""
        known = self._hashes.get(path)
        if known is None or known[0] != mark:
            try:
                known = self._hashes[path] = mark, await asyncio.to_thread(_sha256, self._folder / path)
            except FileNotFoundError:  # removed meanwhile
                return None
            except OSError as error:
                if self._unreadable.get(path) != mark:  # logged once, although it is retried in every scan
                    log.warning("skipping a watched file until it can be read: %s", error)
                self._unreadable[path] = mark
                return None
            self._unreadable.pop(path, None)
        return known[1]

    async def _fire(self, watcher: Watcher, seen: ChangedFile) -> int:
        engine, trigger = self._engine, watcher.trigger
        try:
            came = await crash_points.named(
                "watched files", engine.store.run(lambda tx: watched_files.fire_for(tx, engine, trigger, seen))
            )
        except (InputError, ConflictError) as error:
            why = str(error)
            await crash_points.named(
                "watched files", engine.store.run(lambda tx: watched_files.skip_for(tx, engine, trigger, seen, why))
            )
            return 0
        return 1 if came is not None and came.outcome == "fired" else 0


def _scan_folder(folder: Path) -> FolderScan:
    """Find the plain files below a folder, by relative path. Links are not followed: they may lead anywhere."""
    marks: dict[str, Mark] = {}
    unseen: set[str] = set()

    def miss(error: OSError) -> None:
        """The folder itself must exist; an unreadable subfolder does not affect the others."""
        place = Path(error.filename or folder)
        if place == folder:
            raise error
        unseen.add(place.relative_to(folder).as_posix())

    device = folder.stat().st_dev
    for place, folders, names in os.walk(folder, onerror=miss):
        folders.sort()
        for name in names:
            path = Path(place, name)
            known = path.relative_to(folder).as_posix()
            try:
                found = path.lstat()
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError:
                unseen.add(known)
                continue
            if stat.S_ISREG(found.st_mode):
                marks[known] = Mark(found.st_mtime_ns, found.st_size, found.st_ctime)
    return FolderScan(marks, frozenset(unseen), device)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            found.update(part)
    return found.hexdigest()
