"""Watches a folder for triggers that wait for files: by content, so that a file written anew as it was is no news."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shiftwork.core.errors import ConflictError, InputError, ShiftworkError
from shiftwork.core.trigger import Files
from shiftwork.policy.occasion import is_file
from shiftwork.queue.queue import Queue
from shiftwork.queue.triggers import files
from shiftwork.queue.triggers.files import Seen, Watcher

log = logging.getLogger("shiftwork.server")
LOOK_EVERY_SEC = 1.0
MOST_FILES = 10_000
_CHUNK = 1 << 20


class Mark(NamedTuple):
    """What changes when a file is written, without reading it."""

    written_ns: int
    size: int


def check_folder(name: str) -> Path:
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"{name} is no folder", where="--watch")
    return folder.resolve()


class Watching:
    """Looks at a folder again and again; a file counts once it was the same in two looks, so that nobody writes it."""

    def __init__(self, queue: Queue, folder: Path) -> None:
        self._engine = queue.engine
        self._folder = folder
        self._marks: dict[str, Mark] = {}
        self._hashes: dict[str, tuple[Mark, str]] = {}

    async def run_for_ever(self) -> None:
        while True:
            try:
                await self.look()
            except (ShiftworkError, OSError) as error:
                log.warning("cannot look at the files of %s: %s", self._folder, error)
            await asyncio.sleep(LOOK_EVERY_SEC)

    async def look(self) -> int:
        """Look once; how many triggers fired."""
        watchers = await self._engine.store.read(files.watchers)
        if not watchers:
            return 0
        marks = await asyncio.to_thread(self._scan)
        fired = 0
        for watcher in watchers:
            fired += await self._look_for(watcher, marks)
        self._marks = marks
        self._hashes = {path: known for path, known in self._hashes.items() if path in marks}
        return fired

    def _scan(self) -> dict[str, Mark]:
        found = dict(_marks_in(self._folder))
        if len(found) > MOST_FILES:
            raise InputError(f"more than {MOST_FILES} files to be watched", where="--watch")
        return found

    async def _look_for(self, watcher: Watcher, marks: dict[str, Mark]) -> int:
        on = watcher.trigger.on
        assert isinstance(on, Files)
        mine = {path: mark for path, mark in marks.items() if is_file(on, path)}
        if not watcher.looked:
            there = [(path, await self._hash(path, mark)) for path, mark in sorted(mine.items())]
            first = functools.partial(files.look_first, trigger_id=watcher.trigger.id, files=there)
            await self._engine.store.run(first)
            return 0
        return sum([await self._fire(watcher, seen) for seen in await self._news(watcher, mine)])

    async def _news(self, watcher: Watcher, mine: dict[str, Mark]) -> list[Seen]:
        found = []
        for path, mark in sorted(mine.items()):
            if self._marks.get(path) != mark:
                continue  # somebody may still be writing it
            sha256 = await self._hash(path, mark)
            before = watcher.known.get(path)
            if sha256 != before:
                found.append(Seen(path, "added" if before is None else "changed", sha256, mark.size))
        gone = sorted(path for path, sha256 in watcher.known.items() if sha256 is not None and path not in mine)
        return found + [Seen(path, "removed", None, 0) for path in gone if path not in self._marks]

    async def _hash(self, path: str, mark: Mark) -> str:
        known = self._hashes.get(path)
        if known is None or known[0] != mark:
            known = self._hashes[path] = mark, await asyncio.to_thread(_sha256, self._folder / path)
        return known[1]

    async def _fire(self, watcher: Watcher, seen: Seen) -> int:
        engine, trigger = self._engine, watcher.trigger
        try:
            came = await engine.store.run(lambda tx: files.fire_for(tx, engine, trigger, seen))
        except (InputError, ConflictError) as error:
            why = str(error)
            await engine.store.run(lambda tx: files.skip_for(tx, engine, trigger, seen, why))
            return 0
        return 1 if came is not None and came.outcome == "fired" else 0


def _marks_in(folder: Path) -> Iterator[tuple[str, Mark]]:
    """Plain files below a folder, by their path in it. Links are not followed: they may lead anywhere."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            path = Path(place, name)
            try:
                known = path.lstat()
            except FileNotFoundError:  # gone meanwhile
                continue
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), Mark(known.st_mtime_ns, known.st_size)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            found.update(part)
    return found.hexdigest()
