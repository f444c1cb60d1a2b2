"""One subtask per input: what `Context.map` spawns, and the outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from shiftwork.model import check
from shiftwork.model.errors import InputError, TaskCancelled, TaskFailed
from shiftwork.model.states import State
from shiftwork.model.task import NewTask
from shiftwork.task_types.typed_task import OneInput

BATCH = 100
"""Subtasks per spawning call."""
FAILED = (TaskFailed, TaskCancelled)
MAX_LIMIT = 10_000


class Ended(Protocol):
    """A subtask that has ended."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def output(self) -> Any: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def error(self) -> str | None: ...


class Part(NamedTuple):
    """Subtasks spawned by one call, and the index of the first."""

    start: int
    tasks: Sequence[NewTask]


def subtasks(task: str | OneInput[Any, Any], inputs: Iterable[Any], limit: int | None, name: str) -> list[NewTask]:
    """The subtasks of a map. With a limit, they share that many serial keys, each running one task at a time."""
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_LIMIT):
        raise InputError(f"expected a whole number from 1 to {MAX_LIMIT}, got {limit!r}", where="limit")
    type_ = task if isinstance(task, str) else task.type
    made = []
    for place, value in enumerate(inputs):
        fields: dict[str, Any] = {"type": type_, "payload": _payload(task, value, place)}
        if limit is not None:
            fields |= {"serial_key": f"{name} {place % limit}", "settings": {"serialize_by": "key"}}
        made.append(check.read(fields, NewTask, f"inputs[{place}]"))
    return made


def _payload(task: str | OneInput[Any, Any], value: Any, place: int) -> Mapping[str, Any]:
    if not isinstance(task, str):
        return task.encode(value)
    if not isinstance(value, Mapping):
        hint = "Pass mappings, or a typed task that converts other values to payloads."
        raise InputError(f"expected a payload, got {value!r}", where=f"inputs[{place}]", hint=hint)
    return value


def batches(tasks: Sequence[NewTask]) -> Iterator[Part]:
    """The subtasks in parts, each small enough for one call."""
    for start in range(0, len(tasks), BATCH):
        yield Part(start, tasks[start : start + BATCH])


def result_of(task: str | OneInput[Any, Any], subtask: Ended) -> Any:
    """The result of a subtask that has ended, or its failure as an exception."""
    if subtask.status == State.COMPLETED:
        return subtask.output if isinstance(task, str) else task.decode_result(subtask.output)
    facts = {"task_id": subtask.id, "status": subtask.status}
    if subtask.status == State.CANCELLED:
        return TaskCancelled(f"subtask {subtask.id} was cancelled: {subtask.error or subtask.reason}", **facts)
    why = f"subtask {subtask.id} failed: {subtask.reason}: {subtask.error}"
    return TaskFailed(why, reason=subtask.reason, error=subtask.error, **facts)
