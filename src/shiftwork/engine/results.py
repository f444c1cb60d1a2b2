"""The result of a task, or the error for a caller that waits for it."""

from __future__ import annotations

from shiftwork.engine import read
from shiftwork.engine.engine import Engine
from shiftwork.model import ids
from shiftwork.model.errors import NotFound, ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.states import ENDED, FINAL, SETTLED, State
from shiftwork.model.task import Result, Task
from shiftwork.store.store import Tx


async def answering_task(tx: Tx, engine: Engine, workspace: str, task_id: str) -> Task:
    """The task that answers for the one named: if it failed or was cancelled, the newest row of its lineage.

    A completed row keeps its result, even if it was rerun since.
    """
    task = await _must_read(tx, engine, workspace, await read.find(tx, workspace, task_id), task_id)
    if task.status not in ENDED or task.status == State.COMPLETED:
        return task
    root = task
    if task.root_task_id != task.id:
        root = await _must_read(tx, engine, workspace, ids.parse(task.root_task_id) or "", task.root_task_id)
    newest = root.superseded_by or root.id
    return task if newest == task.id else await _must_read(tx, engine, workspace, ids.parse(newest) or "", newest)


async def _must_read(tx: Tx, engine: Engine, workspace: str, uuid: str, named: str) -> Task:
    found = await read.tasks(tx, engine, workspace, [uuid])
    if not found:
        raise NotFound(f"there is no task {named!r}", task_id=named)
    return found[0]


def has_ended(task: Task) -> bool:
    """Whether the queue will do nothing more with the task by itself."""
    return task.status in ENDED


def lineage_of(task: Task) -> str:
    """The UUID under which the end of the task is announced."""
    return ids.parse(task.root_task_id) or ""


def result_of(task: Task) -> Result:
    """Return the result of a completed task; raise the error for any other."""
    if task.status == State.COMPLETED and task.result is not None:
        return task.result
    if task.status in SETTLED:
        raise _failed(task)
    if task.status in FINAL:
        why = f": {task.cancel_reason}" if task.cancel_reason else ""
        raise TaskCancelled(
            f"task {task.id} was cancelled{why}", task_id=task.id, status=task.status, reason=task.cancel_reason
        )
    raise _not_ended(task)


def _failed(task: Task) -> TaskFailed:
    result = task.result
    error = (result.error if result else None) or task.last_error or task.blocked_reason
    reason = (result.reason if result else None) or task.failure_reason
    why = error or reason
    again = "dlq retry" if task.status == State.DEAD_LETTERED else "rerun"
    return TaskFailed(
        f"task {task.id} failed" + (f": {why}" if why else ""),
        hint=f"`shiftwork show {task.id}` has every attempt; `shiftwork {again} {task.id}` runs it again.",
        task_id=task.id,
        status=task.status,
        reason=reason,
        error=error,
        attempts=len(task.failure_history),
        data=result.output if result else None,
    )


def _not_ended(task: Task) -> ResultTimeout:
    return ResultTimeout(
        f"task {task.id} has not ended: it is {task.status}{_why(task)}",
        hint=f"Wait longer, or run `shiftwork explain {task.id}` to see why it has not ended.",
        task_id=task.id,
        status=task.status,
    )


def _why(task: Task) -> str:
    """The reason, if it is known without another query."""
    if task.blocked_reason:
        return f" ({task.blocked_reason})"
    if task.blocked_by:
        others = f" and {len(task.blocked_by) - 1} more" if len(task.blocked_by) > 1 else ""
        return f" and depends on {task.blocked_by[0]}{others}"
    if task.status == State.RETRYING and task.last_error:
        return f" after a failed attempt ({task.last_error})"
    return f" ({task.hold})" if task.hold else ""
