"""Stores results that could not be submitted on disk, until the queue has answered."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from shiftwork.agents import known_process as processes
from shiftwork.model.outcome import Token
from shiftwork.model.reports import Completion, Failure, TaskFailure, TaskResult

log = logging.getLogger("shiftwork.worker")


class StoredResult(msgspec.Struct, forbid_unknown_fields=True):
    """A finished attempt: its claim and its result or failure."""

    token: str
    result: TaskResult | None = None
    failure: TaskFailure | None = None
    """The failure, if there is no result."""
    by: processes.Process | None = None
    """The process that wrote it."""


class PendingResult(msgspec.Struct, eq=False):
    """A finished attempt to be sent to the queue."""

    claim: Token
    report: Completion | Failure
    once_accepted: Callable[[], None] | None = None
    failed: bool = False
    """Whether the report is a `Failure`, cached because it is checked so often."""
    since: float = 0.0
    answered: bool = False

    def kept(self) -> StoredResult:
        """The form in which it is stored and retried."""
        if isinstance(self.report, Failure):
            return StoredResult(self.claim.text, failure=TaskFailure(**self.report.fields()))
        return StoredResult(self.claim.text, TaskResult(**self.report.fields()))


def default_folder(store: str, kind: str = "outbox") -> Path | None:
    """One folder for all workers of a store on this machine, so that the next worker continues with leftover results.

    It is next to the database file, or in the user's state folder for a database elsewhere.
    """
    if ":memory:" in store:
        return None
    if store.startswith("sqlite:///"):
        path = Path(store.removeprefix("sqlite:///"))
        return path.with_name(f"{path.name}.{kind}")
    parts = urlsplit(store)
    # The password may change while the database or server stays the same.
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    return _state_folder() / "shiftwork" / kind / hashlib.sha256(place.encode()).hexdigest()[:16]


def _state_folder() -> Path:
    if named := os.environ.get("XDG_STATE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir())


def open_outbox(own: Path | None, store: str, workspace: str) -> Outbox:
    """The worker's own folder or that of its store. Other workspaces have their own."""
    folder = own or default_folder(store)
    return Outbox(folder if folder is None or workspace == "default" else folder / quote(workspace, safe=""))


class Outbox:
    """One small file per result, written whole or not at all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: set[str] = set()
        self._writers: dict[Path, processes.Process | None] = {}
        """The writers of files already read; unreadable files have none."""

    @property
    def folder(self) -> Path | None:
        """An absolute path, which other processes can use."""
        return None if self._folder is None else self._folder.absolute()

    def keep(self, kept: StoredResult) -> bool:
        """Store a result; False if that fails, so that it exists only in memory."""
        if self._folder is None:
            return False
        try:
            text = msgspec.json.encode(msgspec.structs.replace(kept, by=processes.this_process()))
            msgspec.json.decode(text, type=StoredResult)  # an unreadable result could not be submitted
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(self._file(kept.token), text)
        except (OSError, TypeError, ValueError, RecursionError) as error:
            log.warning("%s cannot be kept in the outbox: %s", kept.token, error)
            return False
        self._written.add(kept.token)
        return True

    def _write(self, target: Path, text: bytes) -> None:
        temporary = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
        with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the outbox; returns whether this process may now submit leftover results, as the only one on this
        machine.

        The result of a lost claim changes nothing, but its cost is booked: concurrent submissions could book it twice.
        """
        try:
            folder = None if self._folder is None else os.open(self._folder, os.O_RDONLY)
        except OSError:  # it does not exist, or cannot be read
            folder = None
        if folder is None:
            yield True
            return
        try:
            yield _lock(folder)
        finally:
            os.close(folder)

    @property
    def holds_any(self) -> bool:
        return bool(self._written)

    def has(self, token: str) -> bool:
        return token in self._written

    def drop(self, token: str) -> None:
        """Remove a result that was submitted, or is no longer wanted."""
        if token in self._written:
            self._written.discard(token)
            try:
                self._file(token).unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be removed from the outbox: %s", token, error)

    def left(self) -> Iterator[StoredResult]:
        """Results that an earlier run or another worker could not submit."""
        for file in self._files():
            if (kept := self._read(file)) is not None:
                self._written.add(kept.token)
                yield kept

    def of_dead_workers(self) -> Iterator[StoredResult]:
        """The same, of dead processes of this machine only. Each file is read once, however long its writer lives."""
        files = self._files()
        self._writers = {file: self._writers[file] for file in files if file in self._writers}
        is_gone = functools.cache(processes.is_gone)
        for file in files:
            if file not in self._writers:
                kept = self._read(file)
                self._writers[file] = None if kept is None else kept.by
            writer = self._writers[file]
            if writer is not None and is_gone(writer) and (kept := self._read(file)) is not None:
                self._written.add(kept.token)
                yield kept

    def _files(self) -> list[Path]:
        try:
            return sorted(self._folder.glob("*.json")) if self._folder and self._folder.is_dir() else []
        except OSError as error:
            log.warning("cannot read the outbox: %s", error)
            return []

    def _read(self, file: Path) -> StoredResult | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=StoredResult)
        except FileNotFoundError:
            return None  # its own worker removed it first
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s in the outbox cannot be read (%s); it is kept for inspection", file, error)
            return None

    def _file(self, token: str) -> Path:
        assert self._folder is not None
        return self._folder / (re.sub(r"[^\w.-]", "_", token) + ".json")


def _lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
