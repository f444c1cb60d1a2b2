"""Database files: require a local file system, and serialize the writers of several processes."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from shiftwork.model.errors import StoreLocked, StoreReadOnly, StoreUnavailable, StoreUnsuitable

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "ncpfs",
        "fuse.sshfs",
    }
    | {"fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "davfs", "fuse.davfs", "drvfs"}
)


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """File locks over a network corrupt a database sooner or later, so such a place is refused at once."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        except OSError:
            return  # not Linux: nothing to read it from
    kind = file_system(path.resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsuitable(f"{path} is on a network file system ({kind})", where=str(path))


def file_system(path: Path, mounts: str) -> str | None:
    """The type of the file system of `path`, from the kernel's table of mounts."""
    best, kind = -1, None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = fields[4].encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


News = Literal["work", "ends"]
_DIGITS = 20
_PLACES: dict[News, int] = {"work": 0, "ends": _DIGITS}
"""The offset of each counter in the file."""


class WriterLock:
    """Writers of several processes take turns on a side file, which is far fairer than SQLite's own busy wait.

    Never the database file itself: closing any descriptor of it would drop SQLite's locks. The file counts
    announcements of new work, so that its watchers are woken by these and not by every commit.
    """

    def __init__(self, database: Path, patience: float) -> None:
        self._path = turn_of(database)
        self._patience = patience
        self._file = _open_turn(self._path, _rights_of(database))
        self._reported = dict.fromkeys(_PLACES, 0)

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._patience
        pause = 0.0001
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreLocked(
                        f"another process has held {self._path.name} for {self._patience:g} s",
                        where=str(self._path),
                    ) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.002)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def tell(self, news: News) -> None:
        """Announce new work or ended tasks: only during a turn, and once its commit is visible."""
        self._reported[news] += 1  # before the file changes, or a concurrent reader would take it for another process's
        try:
            os.pwrite(self._file, b"%020d" % (self._count(news) + 1), _PLACES[news])
        except OSError:  # a full disk: waiters find the work a little later
            self._reported[news] -= 1

    def announced_by_others(self, news: News) -> int:
        """How many announcements others have made since the file was created."""
        return self._count(news) - self._reported[news]

    def _count(self, news: News) -> int:
        digits = os.pread(self._file, _DIGITS, _PLACES[news])
        return int(digits) if digits.isdigit() else 0

    def close(self) -> None:
        file, self._file = self._file, -1  # the system may reuse its descriptor
        os.close(file)


def turn_of(database: Path) -> Path:
    return database.with_name(database.name + ".turn")


def _rights_of(database: Path) -> int:
    """The permissions of the turn file: all who can write the database must be able to take a turn, and no one else."""
    try:
        return database.stat().st_mode & 0o666
    except OSError:
        return 0o600


def _open_turn(path: Path, rights: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, rights)
    except OSError as error:
        kind = StoreReadOnly if isinstance(error, PermissionError) else StoreUnavailable
        hint = "Make it writable for this user: all writers of the queue lock it."
        raise kind(f"{path} cannot be opened: {error.strerror}", where=str(path), hint=hint) from error


def make_private(path: Path) -> None:
    """Create an empty file with access for its owner only, unless it exists: SQLite copies its permissions to the files
    next to it.
    """
    with suppress(OSError):  # opening it reports the error
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


_IN_MODIFY = 0x2


class FileChanges:
    """Reports writes to a file by any process; on systems without inotify (not Linux), never."""

    def __init__(self, *paths: Path) -> None:
        self._happened = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watch = _watch(paths)
        if self._watch is not None:
            self._loop.add_reader(self._watch, self._read)

    @property
    def supported(self) -> bool:
        return self._watch is not None

    def _read(self) -> None:
        assert self._watch is not None
        os.read(self._watch, 65_536)
        self._happened.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until a file is written to; also true if one was since the last call."""
        try:
            async with asyncio.timeout(seconds):
                await self._happened.wait()
        except TimeoutError:
            return False
        self._happened.clear()
        return True

    def close(self) -> None:
        if self._watch is not None:
            self._loop.remove_reader(self._watch)
            os.close(self._watch)


def _watch(paths: Sequence[Path]) -> int | None:
    """A descriptor that becomes readable when one of the files is written to."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        watch: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if watch < 0:
        return None
    if any(libc.inotify_add_watch(watch, os.fsencode(path), _IN_MODIFY) < 0 for path in paths):
        os.close(watch)
        return None
    return watch
