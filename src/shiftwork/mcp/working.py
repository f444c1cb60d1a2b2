"""The tools of agents that do work."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.core.errors import InputError
from shiftwork.core.states import State
from shiftwork.core.task import Wait
from shiftwork.mcp import resuming
from shiftwork.mcp.desk import Seat
from shiftwork.mcp.drafts import made, new_task
from shiftwork.mcp.shapes import (
    AskArguments,
    Beaten,
    Checkpoint,
    CheckpointArguments,
    ClaimArguments,
    Claimed,
    CompleteArguments,
    Ended,
    FailArguments,
    HeartbeatArguments,
    Parked,
    ReleaseArguments,
    SpawnArguments,
    Spawned,
    WaitArguments,
)
from shiftwork.mcp.tool import Tools
from shiftwork.queue.claim import ClaimAnswer
from shiftwork.queue.fence import Outcome
from shiftwork.queue.protection.gates import Closed

tool = Tools()
GO_ON = "Go on with the work."
GIVEN_BACK = (
    "Stop working on this task: it was given back and the token is over. When what it waits for has come, `claim` "
    "hands it out again with the answer. Call `claim` for other work."
)
MORE = "Call `claim` for more work, or stop."


@tool("work", "worker", takes=ClaimArguments, gives=Claimed)
async def claim(seat: Seat, args: ClaimArguments) -> Claimed:
    """Get a task to work on. Name its `token` in every later call about it; end it with complete, fail or release.

    The claim is kept alive while you work, as long as you name its token now and then, as `next` says.
    """
    queue, types = seat.working, seat.types(args.types)
    await seat.desk.introduce(queue, seat.agent_id)
    offers = seat.desk.options
    answer = await queue.claim_answer(
        seat.agent_id,
        wait=args.wait_sec,
        start=True,
        types=types,
        capabilities=offers.capabilities,
        models=offers.models,
    )
    if not answer.assignments:
        return _nothing(seat, answer)
    (assignment,) = answer.assignments
    try:
        work = await resuming.work_of(queue, assignment)
    except BaseException:  # nobody would know of the claim
        seat.desk.give_back(queue, assignment.token)  # beside: the call's time may be over
        raise
    others = seat.holding
    seat.hold(assignment.token, assignment.heartbeat_interval_sec)
    return Claimed(
        next=f"Do this task, then call `complete` with its token and the result, or `fail` with what went wrong. "
        f"Until then name the token at least every {offers.keep_sec:g} seconds; `heartbeat` does.",
        task=work,
        holding=others,
        slow_down_sec=answer.slow_down_sec,
    )


def _nothing(seat: Seat, answer: ClaimAnswer) -> Claimed:
    step = "There is no work for you now. Call `claim` again with `wait_sec`, or stop."
    if answer.at_capacity:
        step = f"Agent {seat.agent_id} holds as many tasks as it may. Go on with those in `holding`, or end them first."
    closed = [_shut(gate) for gate in answer.closed]
    return Claimed(next=step, holding=seat.holding, closed=closed, slow_down_sec=answer.slow_down_sec)


def _shut(gate: Closed) -> str:
    what = "everything" if gate.scope == "*" else gate.scope
    return f"{gate.gate}: {what}"


@tool("work", "worker", takes=HeartbeatArguments, gives=Beaten)
async def heartbeat(seat: Seat, args: HeartbeatArguments) -> Beaten:
    """Say that you are still at a task, how far it is and what it cost; learn whether to go on."""
    told = await seat.working.heartbeat(args.token, args.progress, args.usage)
    if told.action == "continue":
        await seat.keep(args.token)
        return Beaten(task_id=told.task_id, action="continue", next=GO_ON, slow_down_sec=told.slow_down_sec)
    if told.action == "yield":
        await seat.keep(args.token)
        step = "An urgent task waits. Come to a good place, keep what you have with `checkpoint`, and call `release`."
        return Beaten(task_id=told.task_id, action="yield", next=step, reason=told.reason)
    seat.let_go(args.token)
    step = "Stop working on this task and drop its token. Call `claim` for other work."
    return Beaten(task_id=told.task_id, action=told.action, next=step, reason=told.reason)


@tool("work", "worker", takes=CheckpointArguments, gives=Checkpoint, once=True)
async def checkpoint(seat: Seat, args: CheckpointArguments) -> Checkpoint:
    """Keep what a step of the work came to, so that a later attempt need not do it again. The first result stands.

    Without `result` it answers what is kept under this name.
    """
    queue = seat.working
    if args.result is msgspec.UNSET:
        step = await queue.begin_step(args.token, args.name)
    else:
        step = await queue.complete_step(args.token, args.name, args.result, args.usage)
    await seat.keep(args.token)
    return Checkpoint(name=step.name, done=step.status == "done", result=step.result)


@tool("work", "worker", takes=SpawnArguments, gives=Spawned)
async def spawn(seat: Seat, args: SpawnArguments) -> Spawned:
    """Split your task: add tasks below it. With `wait` your own is given back until they are done."""
    above = args.token.rpartition(".")[0]
    tasks = [new_task(draft, under=above) for draft in args.tasks]
    done = await seat.working.spawn(args.token, tasks, wait=args.wait)
    waits = args.wait and any(each.status != State.COMPLETED for each in done)
    if waits:
        seat.let_go(args.token)
    else:
        await seat.keep(args.token)
    return Spawned(tasks=[made(each) for each in done], next=GIVEN_BACK if waits else GO_ON)


@tool("work", "worker", takes=WaitArguments, gives=Parked, once=True)
async def wait(seat: Seat, args: WaitArguments) -> Parked:
    """Give the task back until other tasks are done, some time has passed, or a signal was sent. Never blocks."""
    if sum([bool(args.tasks), args.seconds is not None, args.signal is not None]) != 1:
        mend = "Give exactly one of `tasks`, `seconds` and `signal`."
        raise InputError("a wait is for tasks, a time or a signal", where="tasks", mend=mend)
    if args.tasks:
        if await seat.working.wait_for(args.token, args.tasks) == State.RUNNING:
            await seat.keep(args.token)
            return Parked(status="met", next=GO_ON)
        seat.let_go(args.token)
        return Parked(status="waiting", next=GIVEN_BACK)
    if args.name is None:
        raise InputError("a wait for a time or a signal has a name", where="name", mend="Name it, e.g. `build-done`.")
    queue = seat.working
    terms: dict[str, Any] = {"signal": args.signal, "timeout_sec": args.timeout_sec}
    if args.seconds is not None:
        terms["until"] = queue.now() + args.seconds
    return await _parked(seat, args.token, await queue.wait(args.token, args.name, **terms))


@tool("work", "worker", takes=AskArguments, gives=Parked, once=True)
async def ask_human(seat: Seat, args: AskArguments) -> Parked:
    """Ask a person something that the work depends on. The task is given back until it is answered. Never blocks."""
    asked: dict[str, Any] = {"question": args.question, "schema": args.schema, "timeout_sec": args.timeout_sec}
    return await _parked(seat, args.token, await seat.working.wait(args.token, args.name, **asked))


async def _parked(seat: Seat, token: str, found: Wait) -> Parked:
    if found.status == "open":
        seat.let_go(token)
        return Parked(status="waiting", next=GIVEN_BACK)
    await seat.keep(token)
    step = GO_ON if found.status == "met" else "Nothing came in time. Go on without it, or `fail` the task."
    return Parked(status=found.status, next=step, value=found.value, answered_by=found.answered_by)


@tool("work", "worker", takes=CompleteArguments, gives=Ended, once=True)
async def complete(seat: Seat, args: CompleteArguments) -> Ended:
    """Hand in the result of a task. It is accepted once, however often it is sent."""
    told = await seat.working.complete(
        args.token,
        args.data,
        text=args.text,
        artifacts=args.artifacts,
        decision_report=args.decision_report,
        usage=args.usage,
    )
    return _ended(seat, args.token, told)


@tool("work", "worker", takes=FailArguments, gives=Ended, once=True)
async def fail(seat: Seat, args: FailArguments) -> Ended:
    """Say that you could not do a task, and why. It is tried again as its settings say."""
    told = await seat.working.fail(args.token, args.reason, args.error, usage=args.usage, retry=args.retry)
    return _ended(seat, args.token, told)


@tool("work", "worker", takes=ReleaseArguments, gives=Ended, once=True)
async def release(seat: Seat, args: ReleaseArguments) -> Ended:
    """Give a task back untried, for somebody else. It costs no attempt."""
    return _ended(seat, args.token, await seat.working.release(args.token, args.reason))


def _ended(seat: Seat, token: str, told: Outcome) -> Ended:
    seat.let_go(token)
    return Ended(task_id=told.task_id, status=told.status or "", next=MORE, repeated=told.repeated)
