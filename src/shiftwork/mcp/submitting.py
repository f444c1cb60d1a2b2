"""Tools for agents that submit work, follow it up and decide about it."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from shiftwork.mcp.desk import McpSession
from shiftwork.mcp.drafts import made, new_task
from shiftwork.mcp.resuming import prompt_of, waited
from shiftwork.mcp.shapes import (
    AnswerArguments,
    ApproveArguments,
    CancelArguments,
    Changed,
    CreatedTask,
    GetArguments,
    ListArguments,
    Submission,
    SubmitArguments,
    TaskLine,
    TaskListing,
    TaskOutcome,
    TaskView,
)
from shiftwork.mcp.tool import Tools
from shiftwork.model import outcome
from shiftwork.model.errors import ResultTimeout, TaskCancelled, TaskFailed
from shiftwork.model.states import ENDED
from shiftwork.model.task import Result, Task
from shiftwork.observe.model import Explanation
from shiftwork.waits.model import ApprovalRequest

tool = Tools()
NOT_ENDED = "Some of it has not ended. Call `get` with wait_sec to wait for a task."


@tool("submit", "submitter", takes=SubmitArguments, gives=Submission)
async def submit(session: McpSession, args: SubmitArguments) -> Submission:
    """Hand work to the queue: one task, or several with dependencies between them, all or nothing."""
    tasks = [new_task(draft) for draft in args.tasks]
    if len(tasks) == 1 and args.title is None:
        alone = await session.asking.submit(tasks[0])
        return await _waited(session, Submission(tasks=[made(alone)]), args.wait_sec)
    done = await session.asking.submit_dag({"title": args.title, "tasks": tasks})
    submission = Submission(tasks=[made(each) for each in done], dag_id=done[0].dag_id)
    return await _waited(session, submission, args.wait_sec)


async def _waited(session: McpSession, submission: Submission, wait_sec: float) -> Submission:
    """The same when the work has ended, or the time is up."""
    if not wait_sec:
        return submission
    await _until_ended(session, submission.dag_id, submission.tasks[0].task_id, wait_sec)
    found = {task.id: task for task in await session.asking.batch.get([each.task_id for each in submission.tasks])}
    tasks = [_created(each, found[each.task_id]) for each in submission.tasks if each.task_id in found]
    open_ = any(task.status not in ENDED for task in found.values())
    return msgspec.structs.replace(submission, tasks=tasks, next=NOT_ENDED if open_ else None)


async def _until_ended(session: McpSession, dag_id: str | None, task_id: str, wait_sec: float) -> None:
    with suppress(TaskFailed, TaskCancelled, ResultTimeout):  # the tasks say it themselves
        if dag_id is None:
            await session.asking.result(task_id, wait=wait_sec)
        else:
            await session.asking.dags.result(dag_id, wait=wait_sec)


def _created(created: CreatedTask, task: Task) -> CreatedTask:
    ended = task.status in ENDED and task.result is not None
    result = _outcome(task.result) if ended and task.result else None
    return msgspec.structs.replace(created, status=task.status, result=result)


@tool("read", "worker", "submitter", takes=GetArguments, gives=TaskView)
async def get(session: McpSession, args: GetArguments) -> TaskView:
    """Look at one task: how it stands and why, what would let it continue, and its result. Can wait for its end."""
    if args.wait_sec:
        await _until_ended(session, None, args.task_id, args.wait_sec)
    task = await session.asking.get(args.task_id)
    return _seen(task, None if task.archived else await session.asking.explain(task.id))


def _seen(task: Task, explanation: Explanation | None) -> TaskView:
    return TaskView(
        task_id=task.id,
        type=task.type,
        status=task.status,
        why=explanation.summary if explanation else task.status,
        lifts=[hold.lifts for hold in explanation.holds] if explanation else [],
        title=task.title,
        prompt=prompt_of(task),
        payload=task.payload,
        dag_id=task.dag_id,
        parent_id=task.parent_id,
        dependencies=task.dependencies,
        blocked_by=task.blocked_by,
        tags=task.tags,
        priority=task.priority,
        failed_attempts=task.attempts,
        max_attempts=task.max_attempts,
        agent_id=task.claim.agent_id,
        progress=task.progress,
        waits=[waited(each) for each in task.waits],
        last_error=task.last_error,
        failure_reason=task.failure_reason,
        result=None if task.result is None else _outcome(task.result),
        cost_usd=task.cost_usd,
        version=task.version,
    )


def _outcome(result: Result) -> TaskOutcome:
    return TaskOutcome(
        data=result.data, text=result.text, artifacts=result.artifacts, error=result.error, reason=result.reason
    )


@tool("read", "submitter", takes=ListArguments, gives=TaskListing)
async def list_(session: McpSession, args: ListArguments) -> TaskListing:
    """List tasks in the order of their creation, or only what waits for a person."""
    if args.for_people:
        found = await session.asking.approvals.list(type=args.type, after=args.after, limit=args.limit)
        return TaskListing(
            tasks=[_asked(each) for each in found], next=found[-1].task_id if len(found) == args.limit else None
        )
    page = await session.asking.tasks.list(
        status=args.status,
        type=args.type,
        tag=args.tag,
        dag=args.dag_id,
        parent=args.parent_id,
        after=args.after,
        limit=args.limit,
    )
    return TaskListing(tasks=[_line(task) for task in page.tasks], next=page.next)


def _line(task: Task) -> TaskLine:
    return TaskLine(
        task_id=task.id,
        type=task.type,
        status=task.status,
        title=task.title,
        agent_id=task.claim.agent_id,
        last_error=task.last_error,
    )


def _asked(asked: ApprovalRequest) -> TaskLine:
    return TaskLine(
        task_id=asked.task_id,
        type=asked.type,
        status="waiting_approval" if asked.kind == "approval" else "pending",
        title=asked.title,
        question=asked.question,
        schema=asked.schema,
        revision=asked.revision,
    )


@tool("operate", "submitter", takes=CancelArguments, gives=Changed, destroys=True, idempotent=True)
async def cancel(session: McpSession, args: CancelArguments) -> Changed:
    """Cancel a task that has not ended. Its agent is told to stop."""
    return _changed(await session.asking.cancel(args.task_id, args.reason))


@tool("operate", "submitter", takes=ApproveArguments, gives=Changed, destroys=True)
async def approve(session: McpSession, args: ApproveArguments) -> Changed:
    """Let a task run that waits for approval, or reject it. Decide only what you were asked to decide."""
    decide = session.asking.approvals.approve if args.decision == "approve" else session.asking.approvals.reject
    return _changed(await decide(args.task_id, note=args.note, revision=args.revision))


@tool("operate", "submitter", takes=AnswerArguments, gives=Changed)
async def answer(session: McpSession, args: AnswerArguments) -> Changed:
    """Answer the question that a task asks, with what a person told you."""
    return _changed(await session.asking.approvals.answer(args.task_id, args.value))


def _changed(found: outcome.Outcome) -> Changed:
    return Changed(task_id=found.task_id, status=found.status or "")
