"""Work folders: one per task and its retries, with a record of every run, so that no process outlives it.

A note is a file that the runner holds locked. One that no one holds was left by a runner that died; anyone who finds it
ends the processes it names: the next runner, the next attempt in the folder, or the keeper that waits for just this.
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
from shiftwork.worker import group
from shiftwork.worker.group import Run

log = logging.getLogger("shiftwork.worker")
LOOK_EVERY_SEC = 0.1
_KEEPER = "import sys; sys.stdin.read(); from shiftwork.worker.folders import keep; keep(sys.argv[1])"
"""Waits as a bare interpreter, for many may be waiting; it loads the rest when it has something to do."""


class Note:
    """The locked note of one run."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def write(self, run: Run) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, msgspec.json.encode(run), 0)

    def read(self) -> Run | None:
        """The run that an earlier holder noted and did not end."""
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(self._file, 65_536, 0), type=Run)
        return None

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._file)


class WorkFolder:
    """A folder that one attempt has to itself."""

    def __init__(self, path: Path, note: Note) -> None:
        self.path = path
        self.existed = path.is_dir()
        self.mark = secrets.token_hex(8)
        self._record = note

    async def enter(self) -> None:
        """No one else works here: whom a dead runner left is ended first."""
        if (left := self._record.read()) is not None:
            await asyncio.to_thread(group.kill, left)
        self._make()

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def file(self, name: str, content: bytes) -> Path:
        """A file next to the folder, not in it: its contents belong to the agent. It goes when the attempt ends."""
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
        """The folder that the task names, or that was pinned to it; else one of its own."""
        return self.named(task) or self._root(task) / task.id

    def _root(self, task: Task) -> Path:
        """Workers of several workspaces may have one base, and their tasks are not business of each other."""
        workspace = task.workspace_id
        return self.base if workspace == "default" else self.base / quote(workspace, safe="").replace(".", "%2E")

    def made(self, path: Path) -> bool:
        """Whether it is a folder of ours and not one that a task has named: that may be someone's repository."""
        return self.base in path.parents[:2] and ids.parse(path.name) is not None

    def named(self, task: Task) -> Path | None:
        """Only a folder below the base: anyone who submits a task does not choose where on this machine it is done."""
        root = self._root(task)
        path = (root / (task.work_dir or "")).resolve()
        inside = root in path.parents and self._notes not in (path, *path.parents)
        return path if inside else None

    @asynccontextmanager
    async def take(self, path: Path) -> AsyncIterator[WorkFolder]:
        """Wait until no one works in the folder, and have it."""
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
        """End what runners that have died left behind; how many processes there were."""
        killed = 0
        for path in sorted(self._notes.glob("*.json")):
            note = _lock(path)
            if note is None:
                continue
            if (left := note.read()) is not None:
                killed += group.kill(left)
            note.close()
        return killed

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While this lasts, a process waits for our death, to end what we cannot end then."""
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-c", _KEEPER, str(self.base)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            yield
        finally:
            keeper.communicate()


def keep(base: str) -> None:
    """What the keeper does once its runner has gone."""
    Folders(Path(base)).end_orphans()


def _lock(path: Path) -> Note | None:
    """The note, unless someone holds it. A file that was taken away before we had its lock is no one's note."""
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
