"""A `.loki` folder, whose scripts claim the same tasks as our agents: its lock, its files, and claims alongside them.

Scripts only see `pending.json`. So our claims follow the same protocol: take the lock, read the claims of scripts, and
write our own claims into the file before releasing the lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shiftwork.engine.claim import ClaimAnswer
from shiftwork.model import ids
from shiftwork.model.errors import FolderUnavailable, LockTimeout
from shiftwork.snapshots.row_batches import in_thread
from shiftwork.store import crash_points

QUEUES = ("pending", "in-progress", "completed", "dead-letter", "cancelled")
LOCK = "state/locks/queue.lock"
KEPT = "shiftwork"
"""The `claimedBy` value in `pending.json` that keeps scripts from a task."""
SCRIPT_AGENT = "loki"
"""The agent of scripts that do not name themselves."""
STAMPS = "state/shiftwork.json"
"""Stamps of the other files when the bridge wrote them, so that a claim reads only changed ones."""

Entry = dict[str, Any]
"""One task in a file."""


class Folder:
    """The queue files of one `.loki` folder, each read and replaced as a whole."""

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self._patience = patience

    def file(self, queue: str) -> Path:
        return self.path / "queue" / f"{queue}.json"

    def make(self) -> None:
        """Create what scripts expect. A claim creates nothing: a setting must not decide where files are created."""
        try:
            self.file("pending").parent.mkdir(parents=True, exist_ok=True)
            (self.path / LOCK).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise _unavailable(self.path, error) from error

    def sweep(self) -> None:
        """Remove the temporary files of killed processes. The caller holds the lock."""
        for folder in (self.file("pending").parent, (self.path / STAMPS).parent):
            for left in folder.glob(f".*{_TEMPORARY}"):
                left.unlink(missing_ok=True)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the folder's lock, which excludes scripts and agents. The lock of a killed process is released.

        A file operation runs to its end even if the caller is cancelled: otherwise its thread could overwrite what the
        next holder of the lock has written.
        """
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _unavailable(self.path / LOCK, error) from error
        try:
            await self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    async def _wait_for(self, lock: int) -> None:
        """Block on the lock in a separate thread: a caller that polls may never get it."""
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        loop = asyncio.get_running_loop()
        served: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=_block_on, args=(os.dup(lock), loop, served), daemon=True).start()
        try:
            async with asyncio.timeout(self._patience):
                await served
        except TimeoutError:
            where = str(self.path / LOCK)
            raise LockTimeout(f"{LOCK} has been held for {self._patience:g} s", where=where) from None

    async def read(self, queue: str) -> list[Entry]:
        """The tasks in one file; empty if there is no file."""
        return await in_thread(self._read, queue)

    def _read(self, queue: str) -> list[Entry]:
        file = self.file(queue)
        try:
            tasks = msgspec.json.decode(file.read_bytes(), type=_Content).tasks
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unavailable(file, error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FolderUnavailable(f"{file.name} is not a list of tasks: {error}", where=str(file)) from error
        nameless = [place for place, task in enumerate(tasks) if not isinstance(task.get("id", ""), str)]
        if nameless:
            raise FolderUnavailable(
                f"task {nameless[0]} of {file.name} has an id that is not a string", where=str(file)
            )
        return tasks

    async def write(self, queue: str, tasks: Sequence[Entry]) -> None:
        """Replace one file by a rename, so that no reader sees a partial file."""
        await in_thread(self._write, queue, tasks)

    def stamps(self) -> dict[str, Stamp]:
        return {queue: stamp(self.file(queue)) for queue in QUEUES}

    def record(self) -> None:
        """Record the stamps of the files as written by the queue."""
        replace(self.path / STAMPS, msgspec.json.encode(self.stamps()))

    def touched(self) -> list[str]:
        """The files other than `pending.json` that were changed since."""
        try:
            noted = msgspec.json.decode((self.path / STAMPS).read_bytes(), type=dict[str, Stamp])
        except (OSError, msgspec.DecodeError, RecursionError):
            noted = {}
        return [queue for queue, now in self.stamps().items() if queue != "pending" and now != noted.get(queue)]

    def _write(self, queue: str, tasks: Sequence[Entry]) -> None:
        text = msgspec.json.format(msgspec.json.encode({"tasks": tasks}), indent=2) + b"\n"
        replace(self.file(queue), text)


def _block_on(lock: int, loop: asyncio.AbstractEventLoop, served: asyncio.Future[None]) -> None:
    """Block until the lock is free. If the caller has given up, close the last handle, which releases the lock."""

    def serve() -> None:
        if not served.done():
            served.set_result(None)

    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(serve)
    finally:
        os.close(lock)


class _Content(msgspec.Struct):
    tasks: list[Entry]


Stamp = tuple[int, int, int] | None


def stamp(file: Path) -> Stamp:
    """Changes whenever the file does."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def replace(file: Path, text: bytes) -> None:
    """Write a new file, then move it into place.

    The new file has a random name and is never opened through a symlink: scripts and agents write into this folder, and
    a planted link must not lead to another file.
    """
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        with os.fdopen(os.open(temporary, _NEW, 0o666), "wb") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        crash_points.reach("before placing a file")
        temporary.replace(file)
        crash_points.reach("after placing a file")
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unavailable(file, error) from error


def append(file: Path, text: bytes) -> None:
    """Append to a file of the folder, or create it; never through a symlink."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, flags, 0o666), "ab") as record:
            record.write(text)
    except OSError as error:
        raise _unavailable(file, error) from error


def read_own(file: Path) -> bytes | None:
    """Read a file that only we write; None if there is none. Refuses a symlink."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as found:
            return found.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unavailable(file, error) from error


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".shiftwork-tmp"


def _unavailable(path: Path, error: OSError) -> FolderUnavailable:
    return FolderUnavailable(f"{path.name} cannot be used: {error.strerror}", where=str(path))


class ScriptClaim(NamedTuple):
    """A claim that a script wrote into `pending.json`."""

    task_id: str
    agent_id: str
    fence: int
    """The fence that the script saw: a claim of an older attempt is void."""


def claims_in(tasks: Sequence[Entry]) -> list[ScriptClaim]:
    """The claims of scripts on tasks that were free when the queue wrote the file."""
    claims = []
    for task in tasks:
        agent, fence, waited = claimer(task), task.get("fence", 0), task.get("status", "pending") == "pending"
        if agent is not None and waited and isinstance(fence, int) and "id" in task:
            claims.append(ScriptClaim(task["id"], agent, fence))
    return claims


def claimer(task: Mapping[str, Any]) -> str | None:
    """The agent that claimed a task in a script; None if it is free or kept."""
    agent = task.get("claimedBy")
    return agent if isinstance(agent, str) and agent not in {"", KEPT} else None


async def _moved(folder: Folder) -> list[ScriptClaim]:
    """Claims implied by tasks that scripts moved out of `pending.json`. The last three files may be unreadable."""
    claims = []
    for queue in await in_thread(folder.touched):
        try:
            tasks = await folder.read(queue)
        except FolderUnavailable:
            if queue == "in-progress":
                raise
            continue
        claims += claims_in([{**task, "claimedBy": claimer(task) or SCRIPT_AGENT} for task in tasks if "fence" in task])
    return claims


def by_agent(claims: Sequence[ScriptClaim]) -> dict[str, list[ScriptClaim]]:
    found: dict[str, list[ScriptClaim]] = {}
    for claim in claims:
        found.setdefault(claim.agent_id, []).append(claim)
    return found


async def claim_alongside_scripts(
    folder: Folder,
    adopt: Callable[[Sequence[ScriptClaim]], Awaitable[object]],
    claim: Callable[[], Awaitable[ClaimAnswer]],
    now: Callable[[], float],
) -> ClaimAnswer:
    """Claim while scripts are locked out. Their claims are attached first, and ours are written to the file.

    Nothing is free in the file while the claim runs: if this process dies between the commit and the last write,
    scripts skip the claimed tasks instead of claiming them twice.
    """
    async with folder.locked():
        tasks = await folder.read("pending")
        await adopt([*claims_in(tasks), *await _moved(folder)])
        if not any(is_free(task) for task in tasks):
            return await claim()
        await folder.write("pending", [{**task, "claimedBy": KEPT} if is_free(task) else task for task in tasks])
        holders: dict[str, str] = {}
        try:
            answer = await claim()
            holders = {name: a.task().claim.agent_id or "" for a in answer.assignments for name in _names(a.task())}
        finally:
            await folder.write("pending", [_claimed(task, holders, now()) for task in tasks])
        return answer


def is_free(task: Mapping[str, Any]) -> bool:
    return task.get("claimedBy") is None


def _names(task: Any) -> list[str]:
    uuid = ids.parse(task.id) or task.id
    return [uuid] if task.external_id is None else [uuid, task.external_id]


def _claimed(task: Entry, holders: Mapping[str, str], now: float) -> Entry:
    agent = holders.get(str(task.get("id")))
    if agent is None:
        return task
    return {**task, "claimedBy": agent, "claimedAt": datetime.fromtimestamp(now, UTC).isoformat()}
