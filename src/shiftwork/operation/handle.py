"""The handles that `submit` returns, with what a producer does next: wait, cancel, explain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from shiftwork.model.errors import InputError, ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import Instruction
from shiftwork.model.states import SETTLED, State
from shiftwork.model.task import DagResult, DagTask, Result, Submitted, Task
from shiftwork.observe.model import Explanation
from shiftwork.operation.declare import Executor, Operation

R = TypeVar("R")
S = TypeVar("S")
Patience = float | timedelta | None
"""How long to wait: seconds, a timedelta, or None for as long as it takes."""

ANSWERED_EARLY_SEC = 0.05
"""A server about to stop does not wait: query it again after this."""


class TaskVerbs(Protocol):
    """The queue's methods that a handle uses."""

    async def get(self, task_id: str) -> Task: ...

    async def result(self, task: str, *, wait: Patience = 0) -> Result: ...

    async def cancel(self, task_id: str, reason: str = "cancelled") -> Outcome: ...

    async def explain(self, task_id: str) -> Explanation: ...

    async def tell(self, task_id: str, text: str) -> Instruction: ...


class TaskHandle(Submitted, Generic[R], frozen=True, dict=True):
    """A submitted task: the outcome of the submission, and its result once it ends.

    It has the fields of `Submitted`, as they were when it was submitted. `R` is the type of the result.
    """

    @classmethod
    def of(cls, queue: TaskVerbs, submitted: Submitted, decode: Callable[[Any], R] | None = None) -> TaskHandle[R]:
        """Return the handle of a submitted task; `decode` turns the JSON of a result into an `R`."""
        made: TaskHandle[R] = cls(*msgspec.structs.astuple(submitted))
        made.__dict__.update(_queue=queue, _decode=decode)
        return made

    def decoded(self, decode: Callable[[Any], S]) -> TaskHandle[S]:
        """Return the handle of the same task with results of another type."""
        return TaskHandle.of(self._queue, self, decode)

    async def result(self, timeout: Patience = None) -> R:  # noqa: ASYNC109  # it says so in an error of its own
        """Wait until the task ends and return its result: the submitted data, or the text if there is no data.

        Without `timeout` (seconds or a timedelta) it waits as long as it takes. Raises `TaskFailed`, `TaskCancelled`
        or, when the time is up, `ResultTimeout`; the task itself continues.
        """
        output = (await self._queue.result(self.id, wait=timeout)).output
        decode: Callable[[Any], R] | None = self.__dict__["_decode"]
        return cast(R, output) if decode is None else decode(output)

    async def get(self) -> Task:
        """Return the task in its current state, with all fields."""
        return await self._queue.get(self.id)

    async def cancel(self, reason: str = "cancelled") -> Outcome:
        """Cancel the task if it has not ended, and its dependents as their settings say."""
        return await self._queue.cancel(self.id, reason)

    async def explain(self) -> Explanation:
        """Explain why the task is not running, and what would change that."""
        return await self._queue.explain(self.id)

    async def tell(self, text: str) -> Instruction:
        """Send an instruction to the agent that holds the task, or that claims it next."""
        return await self._queue.tell(self.id, text)

    @property
    def _queue(self) -> TaskVerbs:
        queue: TaskVerbs = self.__dict__["_queue"]
        return queue


WaitForDag = Callable[[str, Patience], Awaitable[DagResult]]


class DagHandle(list[TaskHandle[Any]]):
    """The tasks of a submitted DAG, a handle each, and the DAG they belong to."""

    def __init__(self, tasks: Iterable[TaskHandle[Any]], wait_for: WaitForDag) -> None:
        super().__init__(tasks)
        self.dag_id = next((task.dag_id for task in self if task.dag_id is not None), None)
        """The DAG's id; None if all tasks already existed."""
        self._wait_for = wait_for

    async def results(self, timeout: Patience = None) -> dict[str, DagTask]:  # noqa: ASYNC109  # as of a task
        """Wait until the DAG ends and return the outcome of each task, by its key, or by its id if it has none.

        A task that already existed in another DAG is awaited as well. Without `timeout` it waits as long as it takes;
        when the time is up it raises `ResultTimeout`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_of(timeout, "timeout")
        ended = {} if self.dag_id is None else _by_id(await self._wait_for(self.dag_id, timeout))
        for task in self:
            if task.id not in ended:
                left = max(0.0, deadline - loop.time())
                ended |= _by_id(await self._wait_for((await task.get()).dag_id, None if left == math.inf else left))
        return {task.key or task.id: ended[task.id] for task in self}

    async def result(self, timeout: Patience = None) -> dict[str, Any]:  # noqa: ASYNC109  # as of a task
        """Wait until the DAG ends and return the result of each task, by its key or id.

        If any task failed, raises `TaskFailed` for the first one; `results` returns all outcomes.
        """
        results = await self.results(timeout)
        failed = [task for task in results.values() if task.status in SETTLED]
        for task in sorted(failed, key=lambda task: task.ended_at or 0.0):
            facts = {"task_id": task.id, "status": task.status, "reason": task.reason, "error": task.error}
            raise TaskFailed(f"task {task.id} of the DAG failed: {task.error or task.reason}", **facts)
        for task in results.values():
            if task.status == State.CANCELLED:
                raise TaskCancelled(f"task {task.id} of the DAG was cancelled", task_id=task.id, status=task.status)
        return {key: task.output for key, task in results.items()}


def _by_id(result: DagResult) -> dict[str, DagTask]:
    return {task.id: task for task in result.tasks}


async def in_turns(executor: Executor, operation: Operation, given: dict[str, Any], wait: Patience) -> Any:
    """Repeat the call until the task has ended: a server waits at most 25 seconds per call."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_of(wait)
    while True:
        asked = loop.time()
        waited = min(max(0.0, deadline - asked), executor.max_wait_sec)
        try:
            return await executor.perform(operation, {**given, "wait": waited})
        except ResultTimeout:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(0 if loop.time() - asked >= waited else ANSWERED_EARLY_SEC)


def seconds_of(wait: Patience, where: str = "wait") -> float:
    """How long a caller waits, in seconds; infinite without a limit."""
    if wait is None:
        return math.inf
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if type(seconds) not in {int, float} or not seconds >= 0:  # NaN is not a duration either
        hint = "Pass seconds, a timedelta, or None to wait as long as it takes."
        raise InputError(f"expected a non-negative duration, got {wait!r}", where=where, hint=hint)
    return float(seconds)
