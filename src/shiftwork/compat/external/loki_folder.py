"""A `.loki` folder, whose scripts claim the same tasks as our agents: its lock, its files, and a claim next to them.

Scripts see nothing but `pending.json`. So a claim of ours does there what the scripts do: it takes the lock, looks who
has claimed what, and writes its own claims into the file before it lets go.
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
"""Who has claimed, in `pending.json`, what no script may take now."""
SCRIPT_AGENT = "loki"
"""The agent of work that was done by no one who gave a name."""
NOTED = "state/shiftwork.json"
"""How the other files were when the bridge wrote them, so that a claim need not read those that no one has touched."""

Entry = dict[str, Any]
"""One task as it is in a file."""


class Folder:
    """The queue files of one `.loki` folder, each read whole and replaced whole."""

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self._patience = patience

    def file(self, queue: str) -> Path:
        return self.path / "queue" / f"{queue}.json"

    def make(self) -> None:
        """What scripts expect to be there. A claim makes nothing: a setting must not choose where files come to be."""
        try:
            self.file("pending").parent.mkdir(parents=True, exist_ok=True)
            (self.path / LOCK).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise _unavailable(self.path, error) from error

    def sweep(self) -> None:
        """Remove what a process left that was killed while it wrote. The caller holds the lock."""
        for folder in (self.file("pending").parent, (self.path / NOTED).parent):
            for left in folder.glob(f".*{_TEMPORARY}"):
                left.unlink(missing_ok=True)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """While no one else, script or not, reads and writes. Anyone who is killed lets go.

        What is done to the files meanwhile is seen to its end, also when the caller is cancelled: a thread that
        continued would write over what the next holder of the lock has written.
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
        """Stand in line, in a thread of its own: a caller that only looks now and then never gets the lock."""
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        loop = asyncio.get_running_loop()
        served: asyncio.Future[None] = loop.create_future()
        threading.Thread(target=_stand_in_line, args=(os.dup(lock), loop, served), daemon=True).start()
        try:
            async with asyncio.timeout(self._patience):
                await served
        except TimeoutError:
            where = str(self.path / LOCK)
            raise LockTimeout(f"{LOCK} has been held for {self._patience:g} s", where=where) from None

    async def read(self, queue: str) -> list[Entry]:
        """The tasks in one file; none where there is no file."""
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
        """Replace one file by a rename, so that no one ever sees half of it."""
        await in_thread(self._write, queue, tasks)

    def stamps(self) -> dict[str, Stamp]:
        return {queue: stamp(self.file(queue)) for queue in QUEUES}

    def record(self) -> None:
        """Keep how the files are now, as those that hold what the queue says."""
        replace(self.path / NOTED, msgspec.json.encode(self.stamps()))

    def touched(self) -> list[str]:
        """The files but `pending.json` that someone else has written since."""
        try:
            noted = msgspec.json.decode((self.path / NOTED).read_bytes(), type=dict[str, Stamp])
        except (OSError, msgspec.DecodeError, RecursionError):
            noted = {}
        return [queue for queue, now in self.stamps().items() if queue != "pending" and now != noted.get(queue)]

    def _write(self, queue: str, tasks: Sequence[Entry]) -> None:
        text = msgspec.json.format(msgspec.json.encode({"tasks": tasks}), indent=2) + b"\n"
        replace(self.file(queue), text)


def _stand_in_line(lock: int, loop: asyncio.AbstractEventLoop, served: asyncio.Future[None]) -> None:
    """Where no one waits any more, this is the last handle of the lock: it goes as soon as it comes."""

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

    Under a random name and never through a link: scripts and agents write into this folder, and a
    link planted there must not lead us to another file.
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
    """Add to a file of the folder, or begin it; never through a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, flags, 0o666), "ab") as record:
            record.write(text)
    except OSError as error:
        raise _unavailable(file, error) from error


def read_own(file: Path) -> bytes | None:
    """A file that only we write; None where there is none. Refused where a link is in its place."""
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
    """A claim that a script has written into `pending.json`."""

    task_id: str
    agent_id: str
    fence: int
    """Of the task as the script saw it: a claim of an older attempt is none."""


def claims_in(tasks: Sequence[Entry]) -> list[ScriptClaim]:
    """What scripts have claimed of tasks that waited when the queue wrote them down."""
    claims = []
    for task in tasks:
        agent, fence, waited = claimer(task), task.get("fence", 0), task.get("status", "pending") == "pending"
        if agent is not None and waited and isinstance(fence, int) and "id" in task:
            claims.append(ScriptClaim(task["id"], agent, fence))
    return claims


def claimer(task: Mapping[str, Any]) -> str | None:
    """The script's agent that has claimed a task."""
    agent = task.get("claimedBy")
    return agent if isinstance(agent, str) and agent not in {"", KEPT} else None


async def _moved(folder: Folder) -> list[ScriptClaim]:
    """What scripts have moved out of `pending.json`, to which a claim belongs. The last three files may be broken."""
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
    """Claim while no script can. What scripts have claimed is theirs; what is claimed now is not free to them.

    Nothing is free in the file while the choice is made: anyone who dies between the commit and the file's last writing
    leaves work that scripts pass over, not work that two have.
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
