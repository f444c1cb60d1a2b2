"""Tools for agents that submit work, follow it up and decide about it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shiftwork.engine.api import Everyday, Submissions, Tasks
from shiftwork.mcp.claimed_task import prompt_of
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.new_tasks import TaskList, created, new_task
from shiftwork.mcp.tool import Parameter, ToolCall, Tools, WaitSec
from shiftwork.mcp.tool_results import (
    Changed,
    CreatedTask,
    Submission,
    TaskLine,
    TaskListing,
    TaskOutcome,
    TaskView,
    WaitResult,
)
from shiftwork.model import outcome
from shiftwork.model.errors import ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.states import ENDED
from shiftwork.model.task import Task, Text
from shiftwork.observe.model import Explanation
from shiftwork.waits.api import Approvals
from shiftwork.waits.model import ApprovalRequest

tool = Tools()
MAX_LISTED = 100
TASK_ID = "The task's id."
WAIT_SEC = "How long to wait for the end of the work."
NOT_ENDED = "Some tasks have not ended. Call `get` with wait_sec to wait for one."


@tool(
    Submissions.submit,
    "submitter",
    takes={
        "tasks": Parameter("One task, or several, submitted all or none.", kind=TaskList, required=True),
        "title": Parameter("A title for several tasks.", kind=Text | None, default=None),
        "wait_sec": Parameter(
            WAIT_SEC + " Give 0 to return at once, even if the client follows MCP tasks.",
            kind=WaitSec | None,
            default=None,
        ),
    },
)
async def submit(call: ToolCall) -> Submission:
    """Submit work: one task, or several with dependencies between them, all or nothing."""
    submission = await submitted(call)
    return await _waited(call.session, submission, call["wait_sec"] or 0)


async def submitted(call: ToolCall) -> Submission:
    """Submit without waiting for the end of the work."""
    tasks, title, queue = [new_task(each) for each in call["tasks"]], call["title"], call.session.queue
    if len(tasks) == 1 and title is None:
        return Submission(tasks=[created(await queue.submit(tasks[0]))])
    made = await queue.submit_dag({"title": title, "tasks": tasks})
    return Submission(tasks=[created(each) for each in made], dag_id=made[0].dag_id)


async def _waited(session: McpSession, submission: Submission, wait_sec: float) -> Submission:
    """The submission, after its work has ended or the time is up."""
    if not wait_sec:
        return submission
    await until_ended(session, submission.dag_id, submission.tasks[0].task_id, wait_sec)
    return await refreshed(session, submission)


async def refreshed(session: McpSession, submission: Submission) -> Submission:
    """The same tasks with their states and results now."""
    found = {task.id: task for task in await session.queue.batch.get([each.task_id for each in submission.tasks])}
    tasks = [with_result(each, found[each.task_id]) for each in submission.tasks if each.task_id in found]
    open_ = any(task.status not in ENDED for task in found.values())
    return msgspec.structs.replace(submission, tasks=tasks, next=NOT_ENDED if open_ else None)


async def until_ended(session: McpSession, dag_id: str | None, task_id: str, wait_sec: float) -> None:
    with suppress(TaskFailed, TaskCancelled, ResultTimeout):  # the tasks show their outcomes themselves
        if dag_id is None:
            await session.queue.result(task_id, wait=wait_sec)
        else:
            await session.queue.dags.result(dag_id, wait=wait_sec)


def with_result(made: CreatedTask, task: Task) -> CreatedTask:
    ended = task.status in ENDED and task.result is not None
    result = TaskOutcome.of(task.result) if ended and task.result else None
    return msgspec.structs.replace(made, status=task.status, result=result)


@tool(
    Everyday.get,
    "worker",
    "submitter",
    takes={"task_id": TASK_ID, "wait_sec": Parameter(WAIT_SEC, kind=WaitSec, default=0)},
)
async def get(call: ToolCall) -> TaskView:
    """Show one task: its state and why, what would let it continue, and its result. Can wait for its end."""
    session = call.session
    if call["wait_sec"]:
        await until_ended(session, None, call["task_id"], call["wait_sec"])
    task: Task = await call.run(session.queue)
    return _seen(task, None if task.archived else await session.queue.explain(task.id))


def _seen(task: Task, explanation: Explanation | None) -> TaskView:
    return TaskView.of(
        task,
        task_id=task.id,
        why=explanation.summary if explanation else task.status,
        lifts=[hold.lifts for hold in explanation.holds] if explanation else [],
        prompt=prompt_of(task),
        failed_attempts=task.attempts,
        agent_id=task.claim.agent_id,
        waits=[WaitResult.of(each) for each in task.waits],
        result=None if task.result is None else TaskOutcome.of(task.result),
    )


@tool(
    Tasks.list,
    "submitter",
    takes={
        "status": Parameter("E.g. ready, running, completed, dead_lettered.", kind=str | None),
        "type": None,
        "tag": None,
        "search": "Words that each task must have in its title, payload, tags or errors.",
        "dag": None,
        "parent": "Only subtasks of this task.",
        "newest": "Newest first.",
        "for_people": Parameter("Only open requests to people: approvals and questions.", kind=bool, default=False),
        "after": "Continue after this task id.",
        "limit": Parameter(kind=Annotated[int, Meta(ge=1, le=MAX_LISTED)], default=20),
    },
)
async def list_(call: ToolCall) -> TaskListing:
    """List tasks in order of creation, or only open requests to people."""
    if call["for_people"]:
        found = await call.session.queue.approvals.list(type=call["type"], after=call["after"], limit=call["limit"])
        return TaskListing(
            tasks=[_request_line(each) for each in found],
            next=found[-1].task_id if len(found) == call["limit"] else None,
        )
    page = await call.run(call.session.queue)
    return TaskListing(tasks=[_line(task) for task in page.tasks], next=page.next)


def _line(task: Task) -> TaskLine:
    return TaskLine.of(task, task_id=task.id, agent_id=task.claim.agent_id)


def _request_line(request: ApprovalRequest) -> TaskLine:
    return TaskLine.of(request, status="waiting_approval" if request.kind == "approval" else "pending")


@tool(
    Everyday.cancel,
    "submitter",
    takes={"task_id": TASK_ID, "reason": None},
    destroys=True,
    idempotent=True,
)
async def cancel(call: ToolCall) -> Changed:
    return _changed(await call.run(call.session.queue))


@tool(
    Approvals.approve,
    "submitter",
    destroys=True,
    takes={
        "task_id": TASK_ID,
        "decision": Parameter("reject cancels the task.", kind=Literal["approve", "reject"], default="approve"),
        "note": "The reason, recorded in the history.",
        "revision": "Only if the work still has this revision.",
    },
)
async def approve(call: ToolCall) -> Changed:
    """Approve or reject a task that waits for approval. Decide only what you were asked to decide."""
    queue = call.session.queue
    if call["decision"] == "approve":
        return _changed(await call.run(queue))
    return _changed(await queue.approvals.reject(call["task_id"], note=call["note"], revision=call["revision"]))


@tool(
    Approvals.answer,
    "submitter",
    takes={"task_id": TASK_ID, "value": "The answer: any JSON that matches the question's schema."},
)
async def answer(call: ToolCall) -> Changed:
    """Answer a task's question with what a person decided."""
    return _changed(await call.run(call.session.queue))


def _changed(found: outcome.Outcome) -> Changed:
    return Changed(task_id=found.task_id, status=found.status or "")
