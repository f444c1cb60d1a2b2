"""A claimed task for a model: the work, and what earlier attempts have left."""

from __future__ import annotations

from typing import Any

from shiftwork.engine.assignment import Assignment
from shiftwork.mcp.tool_results import Checkpoint, ClaimedTask, Subtask, WaitResult
from shiftwork.model.task import Task, Wait
from shiftwork.operation.interface import AnyQueue

MAX_KEPT = 100
"""The most checkpoints and subtasks included in a claim; `get` and `list` return the rest."""
MAX_WAITS = 20


async def work_of(queue: AnyQueue, assignment: Assignment) -> ClaimedTask:
    task, token = assignment.task(), assignment.token
    kept = await _kept(queue, task, token) if task.fence > 1 else {}
    deadline = assignment.execution_deadline
    return ClaimedTask.of(
        task,
        token=token,
        task_id=task.id,
        attempt=task.attempts + 1,
        prompt=prompt_of(task),
        inputs=assignment.inputs,
        model=assignment.model,
        account=assignment.account,
        time_left_sec=None if deadline is None else max(0.0, deadline - queue.now()),
        instructions=await queue.claims.inbox(token),
        **{"waits": [], **kept},
    )


def prompt_of(task: Task) -> str | None:
    return (task.spec or {}).get("prompt")


async def _kept(queue: AnyQueue, task: Task, token: str) -> dict[str, Any]:
    """Add checkpoints, waits and subtasks: the agent may know nothing of earlier attempts."""
    steps = await queue.steps.list(task.id, limit=MAX_KEPT)
    below = await queue.tasks.list(parent=task.id, limit=MAX_KEPT)
    return {
        "checkpoints": [Checkpoint.of(step, done=step.status == "done") for step in steps],
        "waits": await _waits(queue, task.id, token),
        "subtasks": [_subtask(each) for each in below.tasks if each.superseded_by is None],
    }


async def _waits(queue: AnyQueue, task_id: str, token: str) -> list[WaitResult]:
    """The task's waits, from its history; a repeated call with the same name returns the result."""
    events = (await queue.tasks.history(task_id)).events
    begun = [event.data for event in events if event.verb == "waited" and event.data and "wait" in event.data]
    return [WaitResult.of(await _again(queue, token, seen_events)) for seen_events in begun[-MAX_WAITS:]]


async def _again(queue: AnyQueue, token: str, data: dict[str, Any]) -> Wait:
    what = "until" if data["kind"] == "time" else "signal" if data["kind"] == "signal" else "question"
    return await queue.waits.wait(token, data["wait"], **{what: data[what]})


def _subtask(task: Task) -> Subtask:
    result = task.result
    return Subtask.of(
        task,
        task_id=task.id,
        data=result.data if result else None,
        text=result.text if result else None,
        error=result.error if result else None,
    )
