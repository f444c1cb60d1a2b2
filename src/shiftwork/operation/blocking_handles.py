"""The handles that `SyncQueue.submit` returns for tasks and DAGs, with methods that block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from shiftwork.model.outcome import Outcome
from shiftwork.model.reports import Instruction
from shiftwork.model.task import DagTask, Submitted, Task
from shiftwork.observe.model import Explanation
from shiftwork.operation.handle import DagHandle, Patience, TaskHandle

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Waiting(Protocol):
    """Runs a coroutine to its end while the caller's thread waits."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SyncTaskHandle(Submitted, Generic[R], frozen=True, dict=True):
    """A submitted task: the outcome of the submission, and its result once it ends."""

    @classmethod
    def of(cls, handle: TaskHandle[R], wait: Waiting) -> SyncTaskHandle[R]:
        made: SyncTaskHandle[R] = cls(*msgspec.structs.astuple(handle))
        made.__dict__.update(_handle=handle, _wait=wait)
        return made

    def decoded(self, decode: Callable[[Any], S]) -> SyncTaskHandle[S]:
        """Return the handle of the same task with results of another type."""
        return SyncTaskHandle.of(self._handle.decoded(decode), self._wait)

    def result(self, timeout: Patience = None) -> R:
        """Wait until the task ends and return its result; see `TaskHandle.result`."""
        return self._wait(self._handle.result(timeout))

    def get(self) -> Task:
        """Return the task in its current state, with all fields."""
        return self._wait(self._handle.get())

    def cancel(self, reason: str = "cancelled") -> Outcome:
        """Cancel the task if it has not ended, and its dependents as their settings say."""
        return self._wait(self._handle.cancel(reason))

    def explain(self) -> Explanation:
        """Explain why the task is not running, and what would change that."""
        return self._wait(self._handle.explain())

    def tell(self, text: str) -> Instruction:
        """Send an instruction to the agent that holds the task, or that claims it next."""
        return self._wait(self._handle.tell(text))

    @property
    def _handle(self) -> TaskHandle[R]:
        handle: TaskHandle[R] = self.__dict__["_handle"]
        return handle

    @property
    def _wait(self) -> Waiting:
        wait: Waiting = self.__dict__["_wait"]
        return wait


class SyncDagHandle(list[SyncTaskHandle[Any]]):
    """The tasks of a submitted DAG, a handle each, and the DAG they belong to."""

    def __init__(self, dag: DagHandle, wait: Waiting) -> None:
        super().__init__(SyncTaskHandle.of(task, wait) for task in dag)
        self.dag_id = dag.dag_id
        self._dag, self._wait = dag, wait

    def results(self, timeout: Patience = None) -> dict[str, DagTask]:
        """Wait until the DAG ends and return the outcome of each task; see `DagHandle.results`."""
        return self._wait(self._dag.results(timeout))

    def result(self, timeout: Patience = None) -> dict[str, Any]:
        """Wait until the DAG ends and return the result of each task; see `DagHandle.result`."""
        return self._wait(self._dag.result(timeout))


def blocking(answer: Any, wait: Waiting) -> Any:
    """An answer of a queue, with every handle in it replaced by a blocking one."""
    if isinstance(answer, TaskHandle):
        return SyncTaskHandle.of(answer, wait)
    if isinstance(answer, DagHandle):
        return SyncDagHandle(answer, wait)
    if isinstance(answer, list) and answer and isinstance(answer[0], TaskHandle):
        return [SyncTaskHandle.of(each, wait) for each in answer]
    return answer
