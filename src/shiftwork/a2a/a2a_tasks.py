"""A task of the queue as A2A shows it: state, result as an artifact, and what it asks."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from a2a.types import Artifact, Message, Part, Role, TaskState, TaskStatus
from a2a.types import Task as A2aTask
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp

from shiftwork.a2a.messages import CONTEXT, KEY
from shiftwork.model.states import SETTLED, State
from shiftwork.model.task import Result, Task
from shiftwork.operation.interface import AnyQueue
from shiftwork.waits.model import ApprovalRequest

RESULT = "result"
MAX_TEXT = 10_000
ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
STOPPED = ENDED | {TaskState.TASK_STATE_INPUT_REQUIRED}
"""States in which a waiting caller gets its answer."""


class Found(NamedTuple):
    """A task of the queue, and the question it asks, if any."""

    task: Task
    questions: list[ApprovalRequest]


async def find(queue: AnyQueue, task_id: str) -> Found:
    """The newest task of a lineage; raises NotFound if there is none."""
    task = await queue.get(task_id)
    while task.superseded_by is not None:
        task = await queue.get(task.superseded_by)
    asks = task.status == State.WAITING_APPROVAL or any(
        wait.status == "open" and wait.kind == "person" for wait in task.waits
    )
    return Found(task, await queue.approvals.list(task=task.id) if asks else [])


def state_of(found: Found) -> TaskState:
    task = found.task
    if task.status == State.COMPLETED:
        return TaskState.TASK_STATE_COMPLETED
    if task.status == State.CANCELLED:
        return TaskState.TASK_STATE_CANCELED
    if task.status in SETTLED:
        return TaskState.TASK_STATE_FAILED
    if found.questions:
        return TaskState.TASK_STATE_INPUT_REQUIRED
    return TaskState.TASK_STATE_WORKING if task.fence else TaskState.TASK_STATE_SUBMITTED


def context_of(task: Task) -> str:
    """The context of its messages; a task not submitted over A2A is its own context."""
    return next((tag.removeprefix(CONTEXT) for tag in task.tags if tag.startswith(CONTEXT)), task.id)


def shown(found: Found, task_id: str, *, history: int | None = None, artifacts: bool = True) -> A2aTask:
    """The whole task under the id that the client knows."""
    whole = A2aTask(id=task_id, context_id=context_of(found.task), status=status_of(found, task_id))
    if artifacts and (made := artifact_of(found.task)) is not None:
        whole.artifacts.append(made)
    if history is None or history > 0:
        whole.history.append(_first_message(found.task, task_id))
    return whole


def as_submitted(found: Found, task_id: str, *, history: int | None = None) -> A2aTask:
    """The task in the state before any agent claimed it."""
    whole = shown(found, task_id, history=history, artifacts=False)
    at = Timestamp()
    at.FromMilliseconds(int(found.task.created_at * 1000))
    whole.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_SUBMITTED, timestamp=at))
    return whole


def status_of(found: Found, task_id: str) -> TaskStatus:
    at = Timestamp()
    at.FromMilliseconds(int(found.task.updated_at * 1000))
    status = TaskStatus(state=state_of(found), timestamp=at)
    parts = _status_parts(found)
    if parts:
        status.message.CopyFrom(
            Message(
                message_id=f"{task_id}-{found.task.version}",
                task_id=task_id,
                context_id=context_of(found.task),
                role=Role.ROLE_AGENT,
                parts=parts,
            )
        )
    return status


def _status_parts(found: Found) -> list[Part]:
    """The agent's question, its progress, or why the task failed."""
    task = found.task
    if found.questions:
        question = found.questions[0]
        about = question.question or f"This {question.type} task waits for approval: answer `approve` or `reject`."
        schema = [] if question.schema is None else [_data({"schema": question.schema})]
        return [Part(text=about), *schema]
    if task.status in SETTLED:
        return [Part(text=(task.last_error or task.failure_reason or "it failed")[:MAX_TEXT])]
    if task.status == State.CANCELLED:
        return [Part(text=task.cancel_reason)] if task.cancel_reason else []
    if task.status == State.COMPLETED or task.progress is None:
        return []
    return [Part(text=task.progress[:MAX_TEXT]) if isinstance(task.progress, str) else _data(task.progress)]


def artifact_of(task: Task) -> Artifact | None:
    """The result of a completed task."""
    if task.status != State.COMPLETED or task.result is None:
        return None
    return Artifact(artifact_id=RESULT, name=RESULT, parts=_result_parts(task.result))


def _result_parts(result: Result) -> list[Part]:
    parts = [Part(text=result.text, media_type="text/plain")] if result.text is not None else []
    if result.data is not None or not (parts or result.artifacts):
        parts.append(_data(result.data))
    return [*parts, *(Part(url=each) for each in result.artifacts)]


def _data(value: Any) -> Part:
    return Part(data=ParseDict(msgspec.to_builtins(value), Value()), media_type="application/json")


def _first_message(task: Task, task_id: str) -> Message:
    """The message that created the task, rebuilt from its prompt and payload."""
    prompt = (task.spec or {}).get("prompt")
    parts = [Part(text=prompt)] if prompt else []
    if task.payload or not parts:
        parts.append(_data(task.payload))
    return Message(
        message_id=(task.idempotency_key or task.id).removeprefix(KEY),
        task_id=task_id,
        context_id=context_of(task),
        role=Role.ROLE_USER,
        parts=parts,
    )
