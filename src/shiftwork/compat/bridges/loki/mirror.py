"""The expected content of the files: read from the queue once, then updated from the event log."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from shiftwork.compat.bridges.loki.entries import entry_of, queue_of
from shiftwork.compat.external.loki_folder import QUEUES, Entry
from shiftwork.compat.views.loki import STATES
from shiftwork.engine import read
from shiftwork.model import ids
from shiftwork.model.states import STORED, State
from shiftwork.model.task import Task
from shiftwork.queue import Queue
from shiftwork.store.store import Tx

PAGE = 1000
MAX_PAGES = 10
"""The most pages of events read at once, since the folder's lock is held meanwhile."""


class Mirror:
    """The tasks of one workspace that are in the files: at most `most` per file, since files are written whole."""

    def __init__(self, queue: Queue, most: int) -> None:
        self._queue = queue
        self._most = most
        self._tasks: dict[str, Task] = {}
        self._entries: dict[str, tuple[Task, bool, Entry]] = {}
        """Each task's last entry, reused if unchanged, since the lock is held while files are built."""
        self._cursor: int | None = None
        self._has_more_waiting = False
        self._untrimmed = False

    async def catch_up(self) -> bool:
        """Read new events, up to a limit; returns whether there were any.

        The cursor moves only after a page is applied, so an interrupted page is read again.
        """
        if self._cursor is None:
            newest, self._tasks = (await self._queue.events("now")).next, {}
            await self._load(QUEUES)
            self._cursor = newest
            return True
        changed = False
        for _ in range(MAX_PAGES):
            before = self._cursor
            news = await self._queue.events(before, limit=PAGE)
            events, after = news.events, news.next
            if after == before:
                break
            await self._refresh({event.task_id for event in events if event.task_id is not None})
            self._cursor = after
            changed = changed or bool(events)
            self._untrimmed = self._untrimmed or changed
        if self._untrimmed:
            await self._trim()
            self._untrimmed = False
        return changed

    async def _load(self, queues: Sequence[str]) -> None:
        """Load twice as many tasks as are shown, so that a removed task does not cause a new search."""
        for queue in queues:
            found = await self._queue.engine.store.read(functools.partial(self._first, queue))
            await self._refresh(found)
            if queue == "pending":
                self._has_more_waiting = len(found) == 2 * self._most

    async def _first(self, queue: str, tx: Tx) -> list[str]:
        names = {"workspace": self._queue.workspace, "count": 2 * self._most}
        if queue == "pending":
            rows = await tx.all("waiting_for_files", **names)
        else:
            states = [(state.value,) for state, file in STATES.items() if file == queue and state in _STORED]
            rows = await tx.all("newest_for_files", items=states, **names)
        return [str(row["id"]) for row in rows]

    async def _refresh(self, names: Iterable[str]) -> None:
        uuids = sorted({ids.parse(name) or name for name in names})
        for start in range(0, len(uuids), PAGE):
            part = uuids[start : start + PAGE]
            found = await self._read(part)
            for uuid in part:
                self._tasks.pop(uuid, None)  # a deleted or archived task is no longer shown
            self._tasks.update((ids.parse(task.id) or task.id, task) for task in found)

    async def _read(self, uuids: Sequence[str]) -> list[Task]:
        """Load tasks, except dead letters that a person deleted: they are stored but hidden."""
        queue = self._queue

        async def load(tx: Tx) -> list[Task]:
            tasks = await read.tasks(tx, queue.engine, queue.workspace, uuids)
            dead = [(uuid,) for task in tasks if queue_of(task) == "dead-letter" and (uuid := ids.parse(task.id))]
            letters = await tx.all("letters_of", items=dead) if dead else ()
            deleted = {(ids.show_task(row["task_id"]), row["round"]) for row in letters if row["deleted"]}
            return [task for task in tasks if (task.id, task.round) not in deleted]

        return await queue.engine.store.read(load)

    async def _trim(self) -> None:
        """Forget tasks beyond the size of a file; load more waiting tasks when few are left."""
        if self._has_more_waiting and len(self._of("pending")) < self._most:
            await self._load(["pending"])
        for queue in QUEUES:
            for task in self._of(queue)[2 * self._most :]:
                del self._tasks[ids.parse(task.id) or task.id]
                self._has_more_waiting = self._has_more_waiting or queue == "pending"

    def _of(self, queue: str) -> list[Task]:
        """The tasks of a file in order of importance: waiting tasks by urgency, the others newest first."""
        tasks = [task for task in self._tasks.values() if queue_of(task) == queue]
        if queue == "pending":
            return sorted(tasks, key=lambda task: (task.priority, task.created_at, task.id))
        return sorted(tasks, key=lambda task: (task.updated_at, task.id), reverse=True)

    def files(self, kept: Callable[[Task], bool]) -> dict[str, list[Entry]]:
        """The expected content of each file. Waiting tasks are in the order in which to claim them."""
        files: dict[str, list[Entry]] = {}
        entries: dict[str, tuple[Task, bool, Entry]] = {}
        for queue in QUEUES:
            tasks = self._of(queue)[: self._most]
            made = [self._entry(t, kept=kept(t)) for t in (tasks if queue == "pending" else reversed(tasks))]
            entries |= {task.id: (task, kept_now, entry) for task, kept_now, entry in made}
            files[queue] = [entry for _, _, entry in made]
        self._entries = entries
        return files

    def _entry(self, task: Task, *, kept: bool) -> tuple[Task, bool, Entry]:
        made = self._entries.get(task.id)
        if made is not None and made[0] is task and made[1] == kept:
            return made
        return task, kept, entry_of(task, kept=kept)


_STORED = frozenset(State(state) for state in STORED)
