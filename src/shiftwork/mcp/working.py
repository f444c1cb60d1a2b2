"""The tools of agents that do work."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.engine import assignment
from shiftwork.limits.model import Closed
from shiftwork.mcp import resuming
from shiftwork.mcp.desk import McpSession
from shiftwork.mcp.drafts import made, new_task
from shiftwork.mcp.shapes import (
    AskArguments,
    Checkpoint,
    CheckpointArguments,
    ClaimArguments,
    ClaimResult,
    CompleteArguments,
    EndedTask,
    FailArguments,
    HeartbeatArguments,
    HeartbeatResult,
    ReleaseArguments,
    SpawnArguments,
    Spawned,
    WaitArguments,
    WaitStatus,
)
from shiftwork.mcp.tool import Tools
from shiftwork.model.errors import InputError
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import Wait

tool = Tools()
GO_ON = "Continue with the work."
RELEASED_TEXT = (
    "Stop working on this task: it was released and the token is no longer valid. Once the wait is over, `claim` "
    "returns it again with the answer. Call `claim` for other work."
)
MORE = "Call `claim` for more work, or stop."


@tool("work", "worker", takes=ClaimArguments, gives=ClaimResult)
async def claim(session: McpSession, args: ClaimArguments) -> ClaimResult:
    """Get a task to work on. Name its `token` in every later call about it; end it with complete, fail or release.

    The claim is kept alive while you work, as long as you name its token now and then, as `next` says.
    """
    queue, types = session.working, session.types(args.types)
    await session.server.introduce(queue, session.agent_id)
    offers = session.server.options
    answer = await queue.claims.request(
        session.agent_id,
        wait=args.wait_sec,
        start=True,
        types=types,
        capabilities=offers.capabilities,
        models=offers.models,
    )
    if not answer.assignments:
        return _nothing(session, answer)
    (assignment,) = answer.assignments
    try:
        work = await resuming.work_of(queue, assignment)
    except BaseException:  # no one would know of the claim
        session.server.release(queue, assignment.token)  # beside: the call's time may be over
        raise
    others = session.holding
    session.hold(assignment.token, assignment.heartbeat_interval_sec)
    return ClaimResult(
        next=f"Do this task, then call `complete` with its token and the result, or `fail` with what went wrong. "
        f"Until then name the token at least every {offers.keep_sec:g} seconds; `heartbeat` does.",
        task=work,
        holding=others,
        slow_down_sec=answer.slow_down_sec,
    )


def _nothing(session: McpSession, answer: assignment.ClaimResult) -> ClaimResult:
    step = "There is no work for you now. Call `claim` again with `wait_sec`, or stop."
    if answer.at_capacity:
        step = f"Agent {session.agent_id} is at capacity. Continue with those in `holding`, or finish them first."
    closed = [_shut(gate) for gate in answer.closed]
    return ClaimResult(next=step, holding=session.holding, closed=closed, slow_down_sec=answer.slow_down_sec)


def _shut(gate: Closed) -> str:
    what = "everything" if gate.scope == "*" else gate.scope
    return f"{gate.gate}: {what}"


@tool("work", "worker", takes=HeartbeatArguments, gives=HeartbeatResult)
async def heartbeat(session: McpSession, args: HeartbeatArguments) -> HeartbeatResult:
    """Say that you are still at a task, how far it is and what it cost; learn whether to continue."""
    answer = await session.working.heartbeat(args.token, args.progress, args.usage)
    if answer.action == "continue":
        await session.keep(args.token)
        return HeartbeatResult(
            task_id=answer.task_id, action="continue", next=GO_ON, slow_down_sec=answer.slow_down_sec
        )
    if answer.action == "yield":
        await session.keep(args.token)
        step = "An urgent task waits. Come to a good place, keep what you have with `checkpoint`, and call `release`."
        return HeartbeatResult(task_id=answer.task_id, action="yield", next=step, reason=answer.reason)
    session.let_go(args.token)
    step = "Stop working on this task and drop its token. Call `claim` for other work."
    return HeartbeatResult(task_id=answer.task_id, action=answer.action, next=step, reason=answer.reason)


@tool("work", "worker", takes=CheckpointArguments, gives=Checkpoint, idempotent=True)
async def checkpoint(session: McpSession, args: CheckpointArguments) -> Checkpoint:
    """Keep what a step of the work came to, so that a later attempt need not do it again. The first result stands.

    Without `result` it answers what is kept under this name.
    """
    queue = session.working
    if args.result is msgspec.UNSET:
        step = await queue.steps.begin(args.token, args.name)
    else:
        step = await queue.steps.complete(args.token, args.name, args.result, args.usage)
    await session.keep(args.token)
    return Checkpoint(name=step.name, done=step.status == "done", result=step.result)


@tool("work", "worker", takes=SpawnArguments, gives=Spawned)
async def spawn(session: McpSession, args: SpawnArguments) -> Spawned:
    """Split your task: add tasks below it. With `wait` your own is released until they are done."""
    above = args.token.rpartition(".")[0]
    tasks = [new_task(draft, under=above) for draft in args.tasks]
    done = await session.working.spawn(args.token, tasks, wait=args.wait, failures=args.failures)
    ended = FINAL | SETTLED if args.failures == "return" else {State.COMPLETED}
    waits = args.wait and any(each.status not in ended for each in done)
    if waits:
        session.let_go(args.token)
    else:
        await session.keep(args.token)
    return Spawned(tasks=[made(each) for each in done], next=RELEASED_TEXT if waits else GO_ON)


@tool("work", "worker", takes=WaitArguments, gives=WaitStatus, idempotent=True)
async def wait(session: McpSession, args: WaitArguments) -> WaitStatus:
    """Give the task back until other tasks are done, some time has passed, or a signal was sent. Never blocks."""
    if sum([bool(args.tasks), args.seconds is not None, args.signal is not None]) != 1:
        hint = "Give exactly one of `tasks`, `seconds` and `signal`."
        raise InputError("a wait is for tasks, a time or a signal", where="tasks", hint=hint)
    if args.tasks:
        found = await session.working.waits.request(args.token, tasks=args.tasks, failures=args.failures)
        if found.status == State.RUNNING:
            await session.keep(args.token)
            return WaitStatus(status="met", next=GO_ON, failed=found.failed)
        session.let_go(args.token)
        return WaitStatus(status="waiting", next=RELEASED_TEXT)
    if args.name is None:
        raise InputError("a wait for a time or a signal has a name", where="name", hint="Name it, e.g. `build-done`.")
    queue = session.working
    terms: dict[str, Any] = {"signal": args.signal, "timeout_sec": args.timeout_sec}
    if args.seconds is not None:
        terms["until"] = queue.now() + args.seconds
    return await _parked(session, args.token, await queue.waits.wait(args.token, args.name, **terms))


@tool("work", "worker", takes=AskArguments, gives=WaitStatus, idempotent=True)
async def ask_human(session: McpSession, args: AskArguments) -> WaitStatus:
    """Ask a person something that the work depends on. The task is released until it is answered. Never blocks."""
    asked: dict[str, Any] = {"question": args.question, "schema": args.schema, "timeout_sec": args.timeout_sec}
    return await _parked(session, args.token, await session.working.waits.wait(args.token, args.name, **asked))


async def _parked(session: McpSession, token: str, found: Wait) -> WaitStatus:
    if found.status == "open":
        session.let_go(token)
        return WaitStatus(status="waiting", next=RELEASED_TEXT)
    await session.keep(token)
    step = GO_ON if found.status == "met" else "Nothing came in time. Go on without it, or `fail` the task."
    return WaitStatus(status=found.status, next=step, value=found.value, answered_by=found.answered_by)


@tool("work", "worker", takes=CompleteArguments, gives=EndedTask, idempotent=True)
async def complete(session: McpSession, args: CompleteArguments) -> EndedTask:
    """Hand in the result of a task. It is accepted once, however often it is sent."""
    outcome = await session.working.complete(args.token, **args.fields())
    return _ended(session, args.token, outcome)


@tool("work", "worker", takes=FailArguments, gives=EndedTask, idempotent=True)
async def fail(session: McpSession, args: FailArguments) -> EndedTask:
    """Say that you could not do a task, and why. It is tried again as its settings say."""
    outcome = await session.working.fail(args.token, args.reason, args.error, usage=args.usage, retry=args.retry)
    return _ended(session, args.token, outcome)


@tool("work", "worker", takes=ReleaseArguments, gives=EndedTask, idempotent=True)
async def release(session: McpSession, args: ReleaseArguments) -> EndedTask:
    """Give a task back untried, for someone else. It costs no attempt."""
    return _ended(session, args.token, await session.working.release(args.token, args.reason))


def _ended(session: McpSession, token: str, outcome: Outcome) -> EndedTask:
    session.let_go(token)
    return EndedTask(task_id=outcome.task_id, status=outcome.status or "", next=MORE, repeated=outcome.repeated)
