"""What `submit` answers: the task or DAG that was submitted, with what its producer does next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from shiftwork.model.errors import InputError
from shiftwork.model.outcome import Outcome
from shiftwork.model.task import Result, Submitted, Task
from shiftwork.observe.model import Explanation

R = TypeVar("R")
Patience = float | timedelta | None
"""How long to wait: seconds, a timedelta, or None for as long as it takes."""


class TaskVerbs(Protocol):
    """What a handle needs of the queue that it came from."""

    async def get(self, task_id: str) -> Task: ...

    async def result(self, task: str, *, wait: Patience = 0) -> Result: ...

    async def cancel(self, task_id: str, reason: str = "cancelled") -> Outcome: ...

    async def explain(self, task_id: str) -> Explanation: ...


class TaskHandle(Submitted, Generic[R], frozen=True, dict=True):
    """A submitted task: what became of the submission, and its result once it ends.

    It has the fields of `Submitted`, as they were when it was submitted. `R` is the type of the result.
    """

    @classmethod
    def of(cls, queue: TaskVerbs, submitted: Submitted, decode: Callable[[Any], R] | None = None) -> TaskHandle[R]:
        """Return the handle of a submitted task; `decode` turns the JSON of a result into an `R`."""
        given = submitted
        made: TaskHandle[R] = cls(
            given.id, given.status, given.duplicate, given.key, given.dag_id, given.missing_dependencies
        )
        made.__dict__.update(_queue=queue, _decode=decode)
        return made

    async def result(self, timeout: Patience = None) -> R:  # noqa: ASYNC109  # it says so in an error of its own
        """Wait until the task ends and return its result: the data handed in, or the text where there is no data.

        Without `timeout` (seconds or a timedelta) it waits as long as it takes. Raises `TaskFailed`, `TaskCancelled`
        or, when the time is up, `ResultTimeout`; the task itself continues.
        """
        output = (await self._queue.result(self.id, wait=timeout)).output
        decode: Callable[[Any], R] | None = self.__dict__["_decode"]
        return cast(R, output) if decode is None else decode(output)

    async def get(self) -> Task:
        """Return the task as it is now, whole."""
        return await self._queue.get(self.id)

    async def cancel(self, reason: str = "cancelled") -> Outcome:
        """Cancel the task if it has not ended, and what depends on it, as its settings say."""
        return await self._queue.cancel(self.id, reason)

    async def explain(self) -> Explanation:
        """Explain why the task is not running, and what would change that."""
        return await self._queue.explain(self.id)

    @property
    def _queue(self) -> TaskVerbs:
        queue: TaskVerbs = self.__dict__["_queue"]
        return queue


class DagHandle(list[TaskHandle[Any]]):
    """The tasks of a submitted DAG, a handle each, and the DAG they belong to."""

    def __init__(self, tasks: Iterable[TaskHandle[Any]] = ()) -> None:
        super().__init__(tasks)
        self.dag_id = next((task.dag_id for task in self if task.dag_id is not None), None)
        """The DAG's id; None where every task was there already."""


def seconds_of(wait: Patience, where: str = "wait") -> float:
    """How long a caller waits, in seconds; infinite where it waits as long as it takes."""
    if wait is None:
        return math.inf
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if type(seconds) not in {int, float} or not seconds >= 0:  # not a number is no duration either
        hint = "Pass seconds, a timedelta, or None to wait as long as it takes."
        raise InputError(f"expected a duration that is not negative, got {wait!r}", where=where, hint=hint)
    return float(seconds)
