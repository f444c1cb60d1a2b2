"""The bridge between a workspace and a `.loki` folder: the queue is the source of truth, the files mirror it.

With `two_way` the files are also read, and every claim, by scripts or by agents, takes the folder's lock
(`compat/external/loki_folder.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from pathlib import Path

import msgspec

from shiftwork.compat.bridges.loki.mirror import Mirror
from shiftwork.compat.bridges.loki.reader import FileEntry, Reader, Refused, as_lines, places
from shiftwork.compat.bridges.loki.reviews import Reviews
from shiftwork.compat.external.loki_folder import QUEUES, Entry, Folder, Stamp, append, stamp
from shiftwork.compat.loki_breaker_file import parse
from shiftwork.limits import gates
from shiftwork.model import keys
from shiftwork.model.errors import ConflictError, FolderUnavailable, InputError, ShiftworkError
from shiftwork.model.keys import Key
from shiftwork.model.states import State
from shiftwork.model.task import Task
from shiftwork.queue import Queue
from shiftwork.settings.cache import FRESH_SEC
from shiftwork.snapshots.row_batches import in_thread

log = logging.getLogger("shiftwork.compat.bridges.loki")
EVERY_SEC = 0.2
FULL_SEC = 5.0
"""When to retry tasks that a full queue refused, if nothing happens before."""
MAX_COUNT = 1000
BREAKERS = "config/circuit-breakers.yaml"
REFUSED = "logs/shiftwork-refused.jsonl"


class PassReport(msgspec.Struct):
    """The result of one pass."""

    tasks: dict[str, int]
    """How many tasks each file holds now."""
    taken: dict[str, int]
    """Changes taken from the files: tasks submitted, claimed, completed and so on."""
    strays: int
    """Tasks in the files that are not in the queue."""
    refused: int
    broken: list[str]
    """Why files could not be read; they are left untouched."""


class Bridge:
    """One workspace and one folder."""

    def __init__(
        self, queue: Queue, path: Path, patience: float, *, two_way: bool = False, most: int = MAX_COUNT
    ) -> None:
        self._queue = queue
        self._two_way = two_way
        self._folder = Folder(path, patience)
        self._mirror = Mirror(queue, most)
        self._reader = Reader(queue)
        self._reviews = Reviews(queue, path)
        self._stamps: dict[str, Stamp] = {}
        self._shown: dict[str, FileEntry] = {}
        self._more = False
        self._try_again_at = math.inf
        self._closed: frozenset[str | Key] = frozenset()
        self._broken: dict[str, str] = {}

    async def open(self) -> None:
        """Create the folder. With `two_way`, every claim takes its lock from now on.

        Wait until other processes have read the setting before any task is free in the files.
        """
        self._folder.make()
        async with self._folder.locked():
            self._folder.sweep()
        if not self._two_way:
            return
        path, before = str(self._folder.path), await self._claim_folder()
        if before not in {None, path}:
            raise ConflictError(
                f"workspace {self._queue.workspace!r} is bridged with {before}",
                where="claim_folder",
                hint="Unset claim_folder once no script claims there.",
            )
        if before is None:
            await self._queue.settings.set("claim_folder", path)
            await asyncio.sleep(2 * FRESH_SEC)

    async def _claim_folder(self) -> str | None:
        engine = self._queue.engine
        return (await engine.settings_cache.get(engine.store, self._queue.workspace)).settings().claim_folder

    async def run(self) -> None:
        """Run a pass whenever the queue or a file has changed; after an error, try again."""
        while True:
            try:
                if await self._is_due():
                    await self.run_pass()
            except (ShiftworkError, OSError, UnicodeError) as error:
                log.warning("the bridge will retry: %s", error)
                self._stamps.clear()
            await asyncio.sleep(EVERY_SEC)

    async def _is_due(self) -> bool:
        changed = await self._mirror.catch_up()
        closed = await self._closed_now()
        if self._more or changed or asyncio.get_running_loop().time() >= self._try_again_at:
            return True
        return closed != self._closed or self._stamps != self._stamps_now()

    async def run_until_stable(self, *, take_new: bool = False) -> PassReport:
        """Run passes until all new tasks are submitted."""
        report = await self.run_pass(take_new=take_new)
        while self._more:
            before, report = report.taken, await self.run_pass(take_new=take_new)
            report.taken = dict(Counter(before) + Counter(report.taken))
        return report

    async def run_pass(self, *, take_new: bool = False) -> PassReport:
        """Run one pass: read what scripts wrote, then write the state of the queue."""
        new = take_new or self._two_way
        rules = stamp(self._folder.path / BREAKERS)  # taken before reading, so that a later write is read next time
        if new and rules != self._stamps.get(BREAKERS):
            await self._configure_breakers()
        async with self._folder.locked():
            files = await self._read()
            found = places(files)
            fresh = [place for place in found if self._shown.get(place.entry.get("id", "")) != place]
            taken = await self._reader.take_in(fresh, new=new, actions=self._two_way)
            await in_thread(self._log_refused, taken.refused)
            await self._mirror.catch_up()
            await self._write(files, [*taken.strays, *taken.left, *taken.waiting])
            self._stamps, self._more = self._folder.stamps() | {BREAKERS: rules}, bool(taken.left)
            self._try_again_at = asyncio.get_running_loop().time() + FULL_SEC if taken.waiting else math.inf
        await self._reviews.write()
        shown = Counter(place.queue for place in self._shown.values())
        counts = {queue: shown[queue] for queue in QUEUES}
        strays = len(taken.strays) + len(taken.waiting)
        return PassReport(counts, dict(taken.done), strays, len(taken.refused), list(self._broken.values()))

    async def _read(self) -> dict[str, list[Entry]]:
        """Read the files; those that cannot be read are logged once and left untouched."""
        files: dict[str, list[Entry]] = {}
        for queue in QUEUES:
            try:
                files[queue] = await self._folder.read(queue)
            except FolderUnavailable as error:
                self._report_broken(queue, error)
            else:
                self._broken.pop(queue, None)
        return files

    def _report_broken(self, what: str, error: ShiftworkError) -> None:
        if self._broken.get(what) != str(error):
            log.warning("left untouched: %s", error)
        self._broken[what] = str(error)

    async def _configure_breakers(self) -> None:
        """Apply the folder's breaker configuration, if it has one."""
        file = self._folder.path / BREAKERS
        if stamp(file) is None:
            return
        try:
            await self._queue.breakers.configure(parse(await asyncio.to_thread(file.read_text, encoding="utf-8")))
        except (InputError, OSError, UnicodeDecodeError) as error:
            what = error.what if isinstance(error, InputError) else error
            problem = FolderUnavailable(f"{file.name} is not a breaker configuration: {what}", where=str(file))
            self._report_broken(BREAKERS, problem)
        else:
            self._broken.pop(BREAKERS, None)

    def _log_refused(self, refused: list[Refused]) -> None:
        if refused:
            lines = [json.dumps(line) + "\n" for line in as_lines(refused, self._queue.now())]
            append(self._folder.path / REFUSED, "".join(lines).encode())

    async def _write(self, before: dict[str, list[Entry]], strays: list[FileEntry]) -> None:
        """Write each readable file whose content differs; last `pending.json`, from which scripts claim."""
        self._closed = await self._closed_now()
        files = self._mirror.files(ScriptFilter(self._closed, two_way=self._two_way))
        for queue in reversed(QUEUES):
            wanted = [*files[queue], *(place.entry for place in strays if place.queue == queue)]
            missing = not self._folder.file(queue).exists()
            if queue in before and (missing or wanted != before[queue]):
                await self._folder.write(queue, wanted)
        if self._two_way:
            await in_thread(self._folder.record)
        self._shown = {entry["id"]: FileEntry(queue, entry) for queue in QUEUES for entry in files[queue]}

    async def _closed_now(self) -> frozenset[str | Key]:
        """Closed types, `*` for all, and keys in a cooldown. Only scripts need them: claims check the gates."""
        if not self._two_way:
            return frozenset()
        names = {"workspace": self._queue.workspace}
        rows = await self._queue.engine.store.read(lambda tx: tx.all("read_gates", **names))
        now, closed = self._queue.now(), set[str | Key]()
        for row in rows:
            if row["agent_id"] == "" and gates.is_shut(row, now):
                if row["kind"] in gates.OF_TYPES:
                    closed.add(row["scope"])
                elif row["kind"] == "cooldown":
                    closed.add(keys.parse(row["scope"]))
            elif row["kind"] == "breaker":
                closed.add(TRIAL + row["scope"])
        return frozenset(closed)

    def _stamps_now(self) -> dict[str, Stamp]:
        return self._folder.stamps() | {BREAKERS: stamp(self._folder.path / BREAKERS)}


TRIAL = "trial:"
"""Marks a type with a half-open breaker, of which one task at a time is free."""


class ScriptFilter:
    """Decides which waiting tasks scripts must not claim now. Call it with the tasks in the order of the file."""

    def __init__(self, closed: frozenset[str | Key], *, two_way: bool) -> None:
        self._closed = closed
        self._two_way = two_way
        self._on_trial: Counter[str] = Counter()

    def __call__(self, task: Task) -> bool:
        if not self._two_way:
            return False
        if task.status != State.READY or task.hold is not None or self._needs_more(task):
            return True
        if gates.WHOLE in self._closed or task.type in self._closed:
            return True
        use = Key(type=task.type)
        if any(isinstance(key, Key) and key.covers(use) for key in self._closed):
            return True
        if TRIAL + task.type not in self._closed:
            return False
        self._on_trial[task.type] += 1
        return self._on_trial[task.type] > 1

    @staticmethod
    def _needs_more(task: Task) -> bool:
        """Whether a task needs a certain agent or capabilities: a script states neither before it claims."""
        constraints = (task.spec or {}).get("constraints") or {}
        asks = constraints.get("required_capabilities") or constraints.get("model_preferences")
        return task.target_agent_id is not None or bool(asks)
