"""What a handler is given: its task, and the verbs it may use while it works."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shiftwork.client.opening import AnyQueue
from shiftwork.core.errors import InputError, OperationTimeout, StoreError
from shiftwork.core.task import NewTask, Submitted, Task, Usage
from shiftwork.queue import check
from shiftwork.queue.claim import Assignment

log = logging.getLogger("shiftwork.worker")
_NOTHING = Usage()


class Fail(Exception):
    """Raised by a handler to fail its attempt with a reason of its choice."""

    def __init__(self, reason: str, error: str = "", *, retry: bool = True) -> None:
        super().__init__(error or reason)
        self.reason = reason
        self.error = error or reason
        self.retry = retry


class GiveBack(Exception):
    """Raised by a handler to give its task back without cost."""


class Parked(BaseException):
    """Ends a handler whose task waits for others. Not an `Exception`: a handler's `except` must not stop it."""


class Child(NamedTuple):
    """A subtask this task has spawned, with what came of it."""

    id: str
    type: str
    status: str
    data: Any
    error: str | None


class Context:
    """One attempt at one task. Heartbeats are not a handler's business: the runner sends them."""

    def __init__(self, queue: AnyQueue, assignment: Assignment) -> None:
        self._queue = queue
        self._assignment = assignment
        self._task: Task | None = None
        self._usage = _NOTHING
        self._cancelled = False

    @property
    def id(self) -> str:
        return self._assignment.id

    @property
    def type(self) -> str:
        return self._assignment.type

    @property
    def token(self) -> str:
        """The claim: hand it to whatever must be able to tell this attempt from an older one."""
        return self._assignment.token

    @property
    def payload(self) -> dict[str, Any]:
        return self._assignment.payload

    @property
    def task(self) -> Task:
        """The whole task as of the claim."""
        if self._task is None:
            self._task = self._assignment.task()
        return self._task

    @property
    def cancelled(self) -> bool:
        """True once nobody wants the result. An async handler is interrupted; a plain one must look here."""
        return self._cancelled

    def cancel(self) -> None:
        """The runner's word to a plain function."""
        self._cancelled = True

    async def read(self) -> Task:
        """The whole task as it is now, with its history."""
        return await self._queue.get(self.id)

    async def progress(self, value: Any) -> None:
        """Say how far the work is. While the store is away this is not told, and the work goes on."""
        try:
            await self._queue.progress(self.token, value)
        except (StoreError, OperationTimeout) as error:
            log.info("the progress of %s was not told: %s", self.id, error)

    async def message(self, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:
        """Tell what is being done: kind is tool_call, text or error. Like progress, only while the store is there."""
        try:
            await self._queue.message(self.token, kind, text, data)
        except (StoreError, OperationTimeout) as error:
            log.info("a message of %s was not told: %s", self.id, error)

    async def pin_session(self, session_id: str | None = None, work_dir: str | None = None) -> None:
        """Keep the agent's own conversation with the task, so that a retry can resume it."""
        await self._queue.pin_session(self.token, session_id, work_dir)

    def spent(self, cost_usd: float = 0.0, tokens_in: int = 0, tokens_out: int = 0) -> None:
        """Note what the work has used; it is booked with the result, and also if there is none."""
        if not math.isfinite(cost_usd):
            raise InputError(f"{cost_usd!r} is no amount of money", where="cost_usd")
        used = {"cost_usd": cost_usd, "tokens_in": tokens_in, "tokens_out": tokens_out}
        more, before = check.read(used, Usage, "usage"), self._usage
        self._usage = Usage(
            cost_usd=before.cost_usd + more.cost_usd,
            tokens_in=before.tokens_in + more.tokens_in,
            tokens_out=before.tokens_out + more.tokens_out,
        )

    def usage(self) -> dict[str, Any] | None:
        """What is noted and not yet booked."""
        if self._usage is _NOTHING:
            return None
        used = {name: getattr(self._usage, name) for name in ("cost_usd", "tokens_in", "tokens_out")}
        return used if any(used.values()) else None

    def take_usage(self) -> dict[str, Any] | None:
        """The same, for whoever books it now."""
        used = self.usage()
        self._usage = _NOTHING
        return used

    async def book_usage(self) -> None:
        """Book what is noted now; done by itself wherever an attempt ends."""
        if used := self.take_usage():
            await self._queue.heartbeat(self.token, usage=used)

    async def spawn(self, tasks: Sequence[NewTask | Mapping[str, Any]]) -> list[Submitted]:
        """Add subtasks to this task's DAG and go on."""
        return await self._queue.spawn(self.token, tasks)

    async def spawn_and_wait(self, tasks: Sequence[NewTask | Mapping[str, Any]]) -> None:
        """Add subtasks and give the slot back; the handler is run again when they are done, with `children` filled."""
        await self.book_usage()
        await self._queue.spawn(self.token, tasks, wait=True)
        raise Parked

    async def children(self) -> list[Child]:
        """Subtasks of this task and what came of them; empty on the first run."""
        found: list[Child] = []
        after: str | None = None
        while True:
            page = await self._queue.tasks(parent=self.id, after=after, limit=500)
            for task in page.tasks:
                data = task.result.data if task.result else None
                error = task.result.error if task.result else None
                if task.superseded_by is None:
                    found.append(Child(task.id, task.type, task.status, data, error))
            if page.next is None:
                return found
            after = page.next
