"""A durable place for results that could not be submitted: kept on disk until the queue has answered."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from shiftwork.agents import known_process as processes
from shiftwork.model.reports import TaskFailure, TaskResult

log = logging.getLogger("shiftwork.worker")


class StoredResult(msgspec.Struct, forbid_unknown_fields=True):
    """A finished attempt: what it came to, under which claim."""

    token: str
    result: TaskResult | None = None
    failure: TaskFailure | None = None
    """How it failed, where it has no result."""
    by: processes.Process | None = None
    """The process that wrote it down."""


def default_folder(store: str, kind: str = "outbox") -> Path | None:
    """One for all workers of a store on this machine, so that anyone who starts next goes on with what is left.

    It is next to the database file, or in the user's state folder for a database elsewhere.
    """
    if ":memory:" in store:
        return None
    if store.startswith("sqlite:///"):
        path = Path(store.removeprefix("sqlite:///"))
        return path.with_name(f"{path.name}.{kind}")
    parts = urlsplit(store)
    # The password may change, the database or the server is the same.
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
    """The worker's own folder or that of its store. What belongs to other workspaces is none of ours."""
    folder = own or default_folder(store)
    return Outbox(folder if folder is None or workspace == "default" else folder / quote(workspace, safe=""))


class Outbox:
    """One small file per result, written whole or not at all."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._written: set[str] = set()
        self._writers: dict[Path, processes.Process | None] = {}
        """Of files that were looked at; one that cannot be read has none."""

    @property
    def folder(self) -> Path | None:
        """As others find it, wherever they run."""
        return None if self._folder is None else self._folder.absolute()

    def keep(self, kept: StoredResult) -> bool:
        """Write it down; False where that cannot be done, and memory is all there is."""
        if self._folder is None:
            return False
        try:
            text = msgspec.json.encode(msgspec.structs.replace(kept, by=processes.this_process()))
            msgspec.json.decode(text, type=StoredResult)  # no one could submit what cannot be read again
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
        """Whether no one else on this machine submits what is left here; then no one does while it lasts.

        A result whose claim was lost changes nothing, but what it cost is booked: by each who hands it in just then.
        """
        try:
            folder = None if self._folder is None else os.open(self._folder, os.O_RDONLY)
        except OSError:  # there is none, or it cannot be looked into
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
        """It was submitted, or is not wanted any more."""
        if token in self._written:
            self._written.discard(token)
            try:
                self._file(token).unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be removed from the outbox: %s", token, error)

    def left(self) -> Iterator[StoredResult]:
        """What an earlier run, or another worker, could not submit."""
        for file in self._files():
            if (kept := self._read(file)) is not None:
                self._written.add(kept.token)
                yield kept

    def of_dead_workers(self) -> Iterator[StoredResult]:
        """The same of processes of this machine that are gone. A file is read once, however long its writer lives."""
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
            return None  # its own worker was faster
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
    except OSError:  # a file system that knows no locks
        return True
    return True
