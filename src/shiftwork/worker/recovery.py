"""Runs before a worker's first claim: registers it, and reclaims what dead processes held."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from shiftwork.agents.model import Runtime
from shiftwork.client.client import Client
from shiftwork.model import reasons
from shiftwork.model.errors import InputError, NotFound, ShiftworkError
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import State
from shiftwork.model.task import Task
from shiftwork.operation.interface import AnyQueue
from shiftwork.upkeep import opened_here
from shiftwork.worker.local_runtimes import Roster, RosterEntry

log = logging.getLogger("shiftwork.worker")
WATCH_SEC = 6.0
"""A runtime with claims that is silent for this long is dead: a live one sends heartbeats every two seconds."""

LOOK_SEC = 0.25
LOOKED_AT = 1000
"""The most tasks waiting for a retry that are searched for those of dead workers."""


class Recovery:
    """Recovery at the start of a worker."""

    def __init__(self, queue: AnyQueue, runtime_id: str, types: Collection[str]) -> None:
        self._queue = queue
        self._runtime_id = runtime_id
        self._types = types
        self._roster = Roster(queue.url, queue.workspace) if isinstance(queue, Client) else None
        self._entry: RosterEntry | None = None
        self._recovered: set[str] = set()
        """Reclaimed tasks that are not known to be settled."""

    def begin(self) -> None:
        """Announce this runtime to others on this machine."""
        if self._roster is not None:
            self._entry = self._roster.enter(self._runtime_id)

    def end(self, *, holds_nothing: bool) -> None:
        if self._entry is not None:
            self._entry.close(remove=holds_nothing)
            self._entry = None

    async def refuse_live_duplicate(self) -> None:
        """Refuse a given id that is in use on another machine: its work must not be reclaimed."""
        before = await self._seen()
        if before is None or not before.held:
            return
        patience = WATCH_SEC - max(0.0, self._queue.now() - before.last_seen)
        until = time.monotonic() + patience
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_SEC)
            now = await self._seen()
            if now is not None and now.last_seen != before.last_seen:
                what = f"another process works as the runtime {self._runtime_id!r}"
                raise InputError(what, where="runtime_id", hint="Stop it, or choose another id.")

    async def _seen(self) -> Runtime | None:
        return next((each for each in await self._queue.runtimes.list() if each.id == self._runtime_id), None)

    async def of_this_runtime(self) -> None:
        """Recover the claims of an earlier process with the same given id."""
        self._record(await self._queue.runtimes.recover(self._runtime_id))

    async def of_dead_workers(self) -> None:
        """Recover the claims of dead processes of this machine, whatever their ids."""
        if (opened := opened_here(self._queue)) is not None:
            from shiftwork.agents import presence  # noqa: PLC0415  # a worker of a server loads no engine

            self._record(await presence.reclaim_gone_now(opened.engine, opened.workspace))
        for runtime_id, entry in self._roster.of_dead_workers() if self._roster is not None else ():
            try:
                self._record(await self._queue.runtimes.recover(runtime_id))
            except ShiftworkError as error:
                log.warning("the claims of %s wait for their lease: %s", runtime_id, error)
                entry.close(remove=False)
            except BaseException:
                entry.close(remove=False)
                raise
            else:
                entry.close(remove=True)

    def _record(self, outcomes: list[Outcome]) -> None:
        if outcomes:
            log.warning("reclaimed %d tasks of a dead process", len(outcomes))
        self._recovered.update(outcome.task_id for outcome in outcomes)

    async def is_expected(self) -> bool:
        """Whether a reclaimed task will become ready by itself, after its retry delay."""
        for task_id in list(self._recovered):
            if not await self._comes_again(task_id):
                self._recovered.discard(task_id)
        return bool(self._recovered) or await self._is_lost_work_to_come()

    async def _is_lost_work_to_come(self) -> bool:
        """Whether a server or a fleet's parent has reclaimed work of our types from a dead worker."""
        retrying = (await self._queue.tasks.list(status=State.RETRYING, limit=LOOKED_AT)).tasks
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
    """Recognize lost work by the error that the queue writes for a lost worker."""
    last = task.failure_history[-1] if task.failure_history else None
    return last is not None and last.reason in reasons.WORKER_LOST and last.note is not None
