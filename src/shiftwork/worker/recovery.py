"""What a worker does before its first claim: it makes sure who it is, and takes back what dead processes held."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any

from shiftwork.client.client import Client
from shiftwork.client.opening import AnyQueue
from shiftwork.core import reasons
from shiftwork.core.errors import InputError, NotFound, ShiftworkError
from shiftwork.core.states import State
from shiftwork.core.task import Task
from shiftwork.duties import presence
from shiftwork.queue.fence import Outcome
from shiftwork.queue.queue import Queue
from shiftwork.worker.roster import Entry, Roster

log = logging.getLogger("shiftwork.worker")
WATCH_SEC = 6.0
"""A runtime that holds something and is silent for so long is dead: a living one beats every two seconds."""

LOOK_SEC = 0.25
LOOKED_AT = 1000
"""Tasks that wait for their retry, among which those of dead workers are looked for."""


class Recovery:
    """Of one start of a worker."""

    def __init__(self, queue: AnyQueue, runtime_id: str, types: Collection[str]) -> None:
        self._queue = queue
        self._runtime_id = runtime_id
        self._types = types
        self._roster = Roster(queue.url, queue.workspace) if isinstance(queue, Client) else None
        self._entry: Entry | None = None
        self._recovered: set[str] = set()
        """Tasks that were taken back and are not settled, as far as we know."""

    def begin(self) -> None:
        """From now on others of this machine see that this runtime lives."""
        if self._roster is not None:
            self._entry = self._roster.enter(self._runtime_id)

    def end(self, *, holds_nothing: bool) -> None:
        if self._entry is not None:
            self._entry.close(remove=holds_nothing)
            self._entry = None

    async def refuse_living(self) -> None:
        """An id that was given may be in use on another machine, and its work must not be taken from it."""
        before = await self._seen()
        if before is None or not before["held"]:
            return
        patience = WATCH_SEC - max(0.0, self._queue.now() - before["last_seen"])
        until = time.monotonic() + patience
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_SEC)
            now = await self._seen()
            if now is not None and now["last_seen"] != before["last_seen"]:
                what = f"another process works as the runtime {self._runtime_id!r}"
                raise InputError(what, where="runtime_id", mend="Stop it, or choose another id.")

    async def _seen(self) -> dict[str, Any] | None:
        return next((each for each in await self._queue.runtimes() if each["id"] == self._runtime_id), None)

    async def of_this_runtime(self) -> None:
        """What an earlier process held under the id that we were given."""
        self._note(await self._queue.orphans(self._runtime_id))

    async def of_the_dead(self) -> None:
        """What processes of this machine held that are gone, whatever they were called."""
        if isinstance(self._queue, Queue):
            self._note(await presence.hand_back_now(self._queue))
        for runtime_id, entry in self._roster.of_the_dead() if self._roster is not None else ():
            try:
                self._note(await self._queue.orphans(runtime_id))
            except ShiftworkError as error:
                log.warning("what %s held waits for its lease: %s", runtime_id, error)
                entry.close(remove=False)
            except BaseException:
                entry.close(remove=False)
                raise
            else:
                entry.close(remove=True)

    def _note(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            log.warning("%d tasks of a process that is gone were taken back", len(outcomes))
        self._recovered.update(outcome.task_id for outcome in outcomes)

    async def is_expected(self) -> bool:
        """Whether something that was taken back will be ready by itself, after the delay of its retry."""
        for task_id in list(self._recovered):
            if not await self._comes_again(task_id):
                self._recovered.discard(task_id)
        return bool(self._recovered) or await self._is_lost_work_to_come()

    async def _is_lost_work_to_come(self) -> bool:
        """Whether others have taken back work of ours from a dead worker: a server, or the parent of a fleet."""
        retrying = (await self._queue.tasks(status=State.RETRYING, limit=LOOKED_AT)).tasks
        return any(task.type in self._types and _lost_its_worker(task) for task in retrying)

    async def _comes_again(self, task_id: str) -> bool:
        try:
            task = await self._queue.get(task_id)
            while task.superseded_by is not None:
                task = await self._queue.get(task.superseded_by)
        except NotFound:
            return False
        return task.status == State.RETRYING


def _lost_its_worker(task: Task) -> bool:
    """By the note that names the lost worker, which the queue writes itself."""
    last = task.failure_history[-1] if task.failure_history else None
    return last is not None and last.reason in reasons.WORKER_LOST and last.note is not None
