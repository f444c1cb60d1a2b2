"""Work folders: one per task and its retries, with a record of every run, so that no process outlives it.

A note is a file locked by the runner. An unlocked note was left by a dead runner; whichever process finds it ends the
processes it names: the next runner, the next attempt in the folder, or the keeper that waits for this.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from shiftwork.model import ids
from shiftwork.model.errors import InputError
from shiftwork.model.task import Task
from shiftwork.worker import process_group
from shiftwork.worker.process_group import Run

log = logging.getLogger("shiftwork.worker")
LOOK_EVERY_SEC = 0.1
_KEEPER = "import sys; sys.stdin.read(); from shiftwork.worker.work_folders import keep; keep(sys.argv[1])"
"""Waits as a bare interpreter, since many may be waiting; it imports the rest only when needed."""


class Note:
    """The locked note of one run."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def write(self, run: Run) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, msgspec.json.encode(run), 0)

    def read(self) -> Run | None:
        """The run that an earlier holder recorded and did not end."""
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(self._file, 65_536, 0), type=Run)
        return None

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._file)


class WorkFolder:
    """A folder used by one attempt exclusively."""

    def __init__(self, path: Path, note: Note) -> None:
        self.path = path
        self.existed = path.is_dir()
        self.mark = secrets.token_hex(8)
        self._record = note

    async def enter(self) -> None:
        """Enter the folder; first ends processes that a dead runner left here."""
        if (left := self._record.read()) is not None:
            await asyncio.to_thread(process_group.kill, left)
        self._make()

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def file(self, name: str, content: bytes) -> Path:
        """A file next to the folder, whose contents belong to the agent. It is removed when the attempt ends."""
        path = self._record.path.with_suffix(f".{name}")
        path.write_bytes(content)
        return path

    def announce(self, run: Run) -> None:
        self._record.write(run)

    def leave(self) -> None:
        for path in self._record.path.parent.glob(f"{self._record.path.stem}.*"):
            if path != self._record.path:
                path.unlink(missing_ok=True)
        self._record.close()


class Folders:
    """The folders below one base."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self._notes = self.base / ".runs"

    def make(self) -> None:
        try:
            self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._notes.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot work in {self.base}: {error.strerror}", where="--work-dir") from error

    def of(self, task: Task) -> Path:
        """The folder named by the task, or pinned to it; otherwise one of its own."""
        return self.named(task) or self._root(task) / task.id

    def _root(self, task: Task) -> Path:
        """One folder per workspace: workers of several workspaces may share a base."""
        workspace = task.workspace_id
        return self.base if workspace == "default" else self.base / quote(workspace, safe="").replace(".", "%2E")

    def made(self, path: Path) -> bool:
        """Whether the folder is ours and not named by a task: that may be a repository."""
        return self.base in path.parents[:2] and ids.parse(path.name) is not None

    def named(self, task: Task) -> Path | None:
        """A folder below the base only: a submitter must not choose a place on this machine."""
        root = self._root(task)
        path = (root / (task.work_dir or "")).resolve()
        inside = root in path.parents and self._notes not in (path, *path.parents)
        return path if inside else None

    @asynccontextmanager
    async def take(self, path: Path) -> AsyncIterator[WorkFolder]:
        """Wait until the folder is free, and lock it."""
        name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        place = WorkFolder(path, await self._wait_for(self._notes / f"{name}.json"))
        try:
            await place.enter()
            yield place
        finally:
            place.leave()

    async def _wait_for(self, path: Path) -> Note:
        while True:
            note = _lock(path)
            if note is not None:
                return note
            await asyncio.sleep(LOOK_EVERY_SEC)

    def end_orphans(self) -> int:
        """End processes left by dead runners; returns how many."""
        killed = 0
        for path in sorted(self._notes.glob("*.json")):
            note = _lock(path)
            if note is None:
                continue
            if (left := note.read()) is not None:
                killed += process_group.kill(left)
            note.close()
        return killed

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep a process waiting that ends the command if we die."""
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-c", _KEEPER, str(self.base)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            yield
        finally:
            keeper.communicate()


def keep(base: str) -> None:
    """Run by the keeper once its runner is gone."""
    Folders(Path(base)).end_orphans()


def _lock(path: Path) -> Note | None:
    """Lock the note, unless another process holds it. A file removed before we locked it does not count."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file).st_ino:
                return Note(path, file)
        os.close(file)
