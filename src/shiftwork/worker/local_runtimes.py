"""Tracks the runtimes of this machine that work through a server: each has a note, locked by its live process.

A server cannot see our processes; the next worker that starts here can. A note whose process is gone names a runtime
that will never come back, and what it held is recovered at once. Each process has a runtime of its own, so two that
live and have the same name never recover each other's work.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from shiftwork.agents import known_process as processes
from shiftwork.model.errors import InputError
from shiftwork.worker.outbox import default_folder

log = logging.getLogger("shiftwork.worker")


class Note(msgspec.Struct, frozen=True):
    """The contents of a runtime's note."""

    runtime_id: str
    host: str
    process: processes.Process | None


class RosterEntry:
    """The note of one runtime, and its lock while this is open."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    def write(self, note: Note) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, msgspec.json.encode(note), 0)

    def read(self) -> Note | None:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(os.pread(self._file, 65_536, 0), type=Note)
        return None

    def close(self, *, remove: bool) -> None:
        """Close the note. If it stays, the next start finds it and recovers the runtime's claims."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


class Roster:
    """The notes of one server and workspace."""

    def __init__(self, url: str, workspace: str) -> None:
        base = default_folder(url, "runtimes")
        assert base is not None  # a server is never in memory
        self._folder = base / quote(workspace, safe="")

    def enter(self, runtime_id: str) -> RosterEntry | None:
        """Record this process as the runtime; None if this machine supports no notes or locks."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            entry = _lock(self._folder / f"{hashlib.sha256(runtime_id.encode()).hexdigest()[:32]}.json")
        except BlockingIOError:
            what = f"a process of this machine works as the runtime {runtime_id!r}"
            raise InputError(what, where="runtime_id", hint="Stop it, or choose another id.") from None
        except OSError as error:
            log.warning("no note of this runtime is kept, so its work waits for its lease if it dies: %s", error)
            return None
        entry.write(Note(runtime_id, socket.gethostname(), processes.this_process()))
        return entry

    def of_dead_workers(self) -> Iterator[tuple[str, RosterEntry]]:
        """Runtimes whose process is known to be gone; the caller closes each note."""
        with suppress(OSError):
            for path in sorted(self._folder.glob("*.json")):
                try:
                    entry = _lock(path)
                except OSError:  # its process lives, or the file system has no locks
                    continue
                note = entry.read()
                if note is None or not _is_dead(note):
                    entry.close(remove=False)
                else:
                    yield note.runtime_id, entry


def _is_dead(note: Note) -> bool:
    """Whether an unlocked note's process is dead. A process of this boot is checked as well; any other note must be
    from this host.

    A folder that several machines share may not share its locks.
    """
    here, process = processes.this_process(), note.process
    if here is not None and process is not None and here.machine == process.machine:
        return processes.is_gone(process)
    return note.host == socket.gethostname()


def _lock(path: Path) -> RosterEntry:
    """Lock the note. One removed before we locked it does not count."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(file).st_ino:
                return RosterEntry(path, file)
        except FileNotFoundError:
            pass
        except OSError:
            os.close(file)
            raise
        os.close(file)
