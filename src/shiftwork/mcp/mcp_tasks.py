"""Work as MCP tasks: the client follows a submission instead of waiting for its end.

An MCP task is a task or a DAG of the queue, under the same id. All of its state is read from the queue, so any server
on the same queue serves it, also after a restart.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from shiftwork.mcp import elicitation, submitter_tools
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.tool_results import CreatedTask, Submission
from shiftwork.model.states import SETTLED, State
from shiftwork.model.task import Task
from shiftwork.waits.model import ApprovalRequest

DAG = "dag_"
POLL_MS = 2000
MAX_TASKS_SHOWN = 1000
MAX_MESSAGE = 500
Status = Literal["working", "input_required", "completed", "failed", "cancelled"]
OF_STATE: dict[str, Status] = {
    State.COMPLETED: "completed",
    State.CANCELLED: "cancelled",
    **dict.fromkeys(SETTLED, "failed"),
}


class McpTask(NamedTuple):
    """A task or a DAG as an MCP task."""

    id: str
    status: Status
    created_at: float
    updated_at: float
    message: str | None
    tasks: list[Task]
    requests: list[ApprovalRequest]
    """The requests to people."""

    @property
    def is_dag(self) -> bool:
        return self.id.startswith(DAG)

    @property
    def ended(self) -> bool:
        return self.status in {"completed", "failed", "cancelled"}


def id_of(submission: Submission) -> str | None:
    """The id to follow a submission by; None if all tasks of a DAG already existed."""
    return submission.tasks[0].task_id if len(submission.tasks) == 1 else submission.dag_id


async def find(session: McpSession, work_id: str) -> McpTask:
    """The state of the work; NotFound if it does not exist."""
    session.require("read")
    return await (_find_dag if work_id.startswith(DAG) else _find_task)(session, work_id)


async def _find_task(session: McpSession, task_id: str) -> McpTask:
    task = first = await session.queue.get(task_id)
    while task.superseded_by is not None:  # retried or rerun as a new task: the newest counts
        task = await session.queue.get(task.superseded_by)
    status = OF_STATE.get(task.status, "working")
    requests = await _requests_of(session, [task]) if status == "working" else []
    return McpTask(first.id, status, first.created_at, task.updated_at, _message(task, requests), [task], requests)


async def _find_dag(session: McpSession, dag_id: str) -> McpTask:
    dag = await session.queue.dags.get(dag_id)
    tasks = await session.queue.batch.get(dag.tasks[:MAX_TASKS_SHOWN])
    requests: list[ApprovalRequest] = []
    status: Status = "working"
    if dag.status in {"completed", "failed", "cancelled"}:
        status = dag.status
    else:
        requests = await _requests_of(session, tasks)
    message = (requests[0].question if requests else None) or f"{dag.done} of {dag.total} done"
    updated = max([dag.created_at, *(task.updated_at for task in tasks)])
    return McpTask(dag.id, status, dag.created_at, updated, message, tasks, requests)


async def _requests_of(session: McpSession, tasks: list[Task]) -> list[ApprovalRequest]:
    waiting = [task for task in tasks if task.status == State.WAITING_APPROVAL or _has_question(task)]
    return [each for task in waiting for each in await session.queue.approvals.list(task=task.id)]


def _has_question(task: Task) -> bool:
    return any(wait.status == "open" and wait.kind == "person" for wait in task.waits)


def _message(task: Task, requests: list[ApprovalRequest]) -> str | None:
    if requests:
        return requests[0].question or "waits for approval"
    message = task.progress if task.progress is not None and task.status not in OF_STATE else task.cancel_reason
    if task.status in SETTLED:
        message = task.last_error
    if message is None:
        return task.status
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return text[:MAX_MESSAGE]


def date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stub(work: McpTask) -> dict[str, Any]:
    """The fields common to all forms of an MCP task. The queue keeps results, so there is no time to live."""
    found: dict[str, Any] = {
        "taskId": work.id,
        "status": "completed" if work.status == "failed" else work.status,
        "createdAt": date(work.created_at),
        "lastUpdatedAt": date(work.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
    return found | ({"statusMessage": work.message} if work.message else {})


def detailed(work: McpTask, *, forms: bool) -> dict[str, Any]:
    """The whole MCP task. With `forms` the client can show them, so open questions are passed on to it."""
    found = stub(work)
    if work.requests and forms:
        shown = {elicitation.key_of(each): elicitation.form_of(each) for each in work.requests}
        return found | {"status": "input_required", "inputRequests": shown}
    if work.status in {"completed", "failed"}:
        # `failed` is for errors of the protocol; work that failed is a completed call with an error as its result.
        return found | {"result": result_of(work)}
    return found


def result_of(work: McpTask) -> dict[str, Any]:
    """The answer of `submit` at the end of the work."""
    made = [CreatedTask(task_id=task.id, status=task.status) for task in work.tasks]
    tasks = [submitter_tools.with_result(each, task) for each, task in zip(made, work.tasks, strict=True)]
    submission = Submission(tasks=tasks, dag_id=work.id if work.is_dag else None)
    content = msgspec.to_builtins(submission)
    text = msgspec.json.encode(content).decode()
    found: dict[str, Any] = {"content": [{"type": "text", "text": text}], "structuredContent": content}
    return found | {"isError": work.status == "failed"}


async def wait(session: McpSession, work: McpTask, wait_sec: float) -> None:
    """Wait at most this long for the end of the work."""
    await submitter_tools.until_ended(session, work.id if work.is_dag else None, work.tasks[0].id, wait_sec)


async def cancel(session: McpSession, work_id: str) -> None:
    """Cancel open work. Ended work stays as it is: a late cancel is not an error."""
    session.require("operate")
    work = await find(session, work_id)
    if work.ended:
        return
    if work_id.startswith(DAG):
        await session.queue.dags.cancel(work_id)
    else:
        await session.queue.cancel(work.tasks[0].id)


async def update(session: McpSession, work_id: str, responses: dict[str, Any]) -> None:
    """Pass answers to the tasks that asked; an answer without an open question is ignored."""
    session.require("operate")
    work = await find(session, work_id)
    for request in work.requests:
        if (response := responses.get(elicitation.key_of(request))) is not None:
            await elicitation.submit_response(session.queue, request, response)
