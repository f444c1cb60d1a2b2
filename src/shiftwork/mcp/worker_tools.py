"""The tools of agents that do work."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from shiftwork.engine import assignment
from shiftwork.engine.claims_api import Claims, Spawning, WorkerVerbs
from shiftwork.limits.model import Closed
from shiftwork.mcp import claimed_task
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.mcp.new_tasks import TaskList, created, new_task
from shiftwork.mcp.tool import Parameter, ToolCall, Tools, WaitSec
from shiftwork.mcp.tool_results import (
    Checkpoint,
    ClaimResult,
    EndedTask,
    HeartbeatResult,
    Spawned,
    WaitStatus,
)
from shiftwork.model.errors import InputError, LeaseLost
from shiftwork.model.outcome import Outcome
from shiftwork.model.states import FINAL, SETTLED, State
from shiftwork.model.task import Name, Text, Wait
from shiftwork.steering.api import Seq
from shiftwork.steps.api import Steps
from shiftwork.waits.api import Waits

tool = Tools()
TOKEN = "The token from `claim`."  # noqa: S105  # describes a parameter
WAIT_NAME = "A name for this wait within the task; the same name returns the same answer."
FAILURES = "`return`: they are done once they have ended, failed or not; your claim then shows which failed."
USAGE = "Usage since the last report."
CONTINUE = "Continue with the work."
FOLLOW = "Follow `instructions`, then call `heartbeat` with their highest `seq` as `acknowledge`."
RELEASED = (
    "Stop working on this task: it was released and the token is no longer valid. Once the wait is over, `claim` "
    "returns it again with the answer. Call `claim` for other work."
)
MORE = "Call `claim` for more work, or stop."


@tool(
    Claims.request,
    "worker",
    name="claim",
    takes={
        "wait": Parameter("How long to wait if there is no work.", kind=WaitSec),
        "types": "Only tasks of these types.",
    },
)
async def claim(call: ToolCall) -> ClaimResult:
    """Get a task to work on. Name its `token` in every later call about it; end it with complete, fail or release.

    The claim is kept alive while you work, as long as you name its token as often as `next` says.
    """
    session = call.session
    queue, types = session.agent_queue, session.types(call["types"])
    await session.server.introduce(queue, session.agent_id)
    offers = session.server.options
    answer: assignment.ClaimResult = await call.run(
        queue,
        agent_id=session.agent_id,
        start=True,
        types=types,
        capabilities=offers.capabilities,
        models=offers.models,
    )
    if not answer.assignments:
        return _nothing(session, answer)
    (assigned,) = answer.assignments
    try:
        work = await claimed_task.work_of(queue, assigned)
    except BaseException:  # no one would know about the claim
        session.server.release(queue, assigned.token)  # in the background: the call's time may be over
        raise
    others = session.holding
    session.start_heartbeats(assigned.token, assigned.heartbeat_interval_sec)
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


@tool(
    WorkerVerbs.heartbeat,
    "worker",
    takes={
        "token": TOKEN,
        "progress": "Your progress: a sentence, or any JSON.",
        "usage": USAGE,
        "acknowledge": Parameter(
            "The highest `seq` of the `instructions` that you have read.", kind=Seq | None, default=None
        ),
    },
)
async def heartbeat(call: ToolCall) -> HeartbeatResult:
    """Report that you are still working on a task, with progress and usage; learn whether to continue.

    `instructions` come from people, about this task: follow them, and acknowledge them in the next heartbeat.
    """
    session, token = call.session, call["token"]
    if call["acknowledge"] is not None:
        with suppress(LeaseLost):  # the heartbeat says so
            await session.agent_queue.claims.acknowledge(token, call["acknowledge"])
    answer = await call.run(session.agent_queue)
    if answer.action == "continue":
        await session.keep(token)
        return HeartbeatResult(
            task_id=answer.task_id,
            action="continue",
            next=FOLLOW if answer.instructions else CONTINUE,
            slow_down_sec=answer.slow_down_sec,
            instructions=answer.instructions,
        )
    if answer.action == "yield":
        await session.keep(token)
        step = "An urgent task waits. Stop at a good point, save what you have with `checkpoint`, and call `release`."
        return HeartbeatResult(task_id=answer.task_id, action="yield", next=step, reason=answer.reason)
    session.stop_heartbeats(token)
    step = "Stop working on this task and drop its token. Call `claim` for other work."
    return HeartbeatResult(task_id=answer.task_id, action=answer.action, next=step, reason=answer.reason)


@tool(
    Steps.complete,
    "worker",
    name="checkpoint",
    takes={
        "token": TOKEN,
        "name": "A name for the step within the task.",
        "result": Parameter(
            "The value to save: any JSON. Omit it to read the saved value and mark the step as begun.",
            default=msgspec.UNSET,
        ),
        "usage": "The step's cost.",
    },
)
async def checkpoint(call: ToolCall) -> Checkpoint:
    """Save the result of a step, so that later attempts need not repeat it. The first result wins.

    Without `result`, returns what is saved under this name.
    """
    session, queue = call.session, call.session.agent_queue
    if call["result"] is msgspec.UNSET:
        step = await queue.steps.begin(call["token"], call["name"])
    else:
        step = await call.run(queue)
    await session.keep(call["token"])
    return Checkpoint(name=step.name, done=step.status == "done", result=step.result)


@tool(
    Spawning.spawn,
    "worker",
    takes={
        "token": TOKEN,
        "tasks": Parameter("Give each a `key`, so that a repeated call creates no duplicates.", kind=TaskList),
        "wait": "Release your task until they are done.",
        "failures": FAILURES,
    },
)
async def spawn(call: ToolCall) -> Spawned:
    """Split your task: add tasks below it. With `wait`, yours is released until they are done."""
    session, token = call.session, call["token"]
    above = token.rpartition(".")[0]
    done = await call.run(session.agent_queue, tasks=[new_task(each, under=above) for each in call["tasks"]])
    ended = FINAL | SETTLED if call["failures"] == "return" else {State.COMPLETED}
    waits = call["wait"] and any(each.status not in ended for each in done)
    if waits:
        session.stop_heartbeats(token)
    else:
        await session.keep(token)
    return Spawned(tasks=[created(each) for each in done], next=RELEASED if waits else CONTINUE)


@tool(
    Waits.request,
    "worker",
    name="wait",
    idempotent=True,
    takes={
        "token": TOKEN,
        "tasks": Parameter("Wait until these tasks are done.", kind=list[Name], default=[]),
        "failures": FAILURES,
        "seconds": Parameter("How long to wait.", kind=Annotated[float, Meta(gt=0)] | None, default=None),
        "signal": "Wait until this signal is sent.",
        "name": WAIT_NAME,
        "timeout_sec": "The longest wait for the signal.",
    },
)
async def wait(call: ToolCall) -> WaitStatus:
    """Release the task until other tasks are done, some time has passed, or a signal was sent. Never blocks."""
    session, token, seconds = call.session, call["token"], call["seconds"]
    if sum([bool(call["tasks"]), seconds is not None, call["signal"] is not None]) != 1:
        hint = "Give exactly one of `tasks`, `seconds` and `signal`."
        raise InputError("a wait is for tasks, a time or a signal", where="tasks", hint=hint)
    if call["tasks"]:
        found = await session.agent_queue.waits.request(token, tasks=call["tasks"], failures=call["failures"])
        if found.status == State.RUNNING:
            await session.keep(token)
            return WaitStatus(status="met", next=CONTINUE, failed=found.failed)
        session.stop_heartbeats(token)
        return WaitStatus(status="waiting", next=RELEASED)
    if call["name"] is None:
        raise InputError("a wait for a time or a signal needs a name", where="name", hint="Name it, e.g. `build-done`.")
    queue = session.agent_queue
    until = None if seconds is None else queue.now() + seconds
    found = await call.run(queue, tasks=None, until=until)
    return await _parked(session, token, found.wait)


@tool(
    Waits.request,
    "worker",
    name="ask_human",
    idempotent=True,
    takes={
        "token": TOKEN,
        "question": Parameter(kind=Annotated[Text, Meta(min_length=1)], required=True),
        "name": Parameter(WAIT_NAME, kind=Name, required=True),
        "schema": "JSON Schema that the answer must meet.",
        "timeout_sec": "The longest wait.",
    },
)
async def ask_human(call: ToolCall) -> WaitStatus:
    """Ask a person something that the work depends on. The task is released until it is answered. Never blocks."""
    found = await call.run(call.session.agent_queue)
    return await _parked(call.session, call["token"], found.wait)


async def _parked(session: McpSession, token: str, found: Wait) -> WaitStatus:
    if found.status == "open":
        session.stop_heartbeats(token)
        return WaitStatus(status="waiting", next=RELEASED)
    await session.keep(token)
    step = CONTINUE if found.status == "met" else "The wait expired. Continue without the answer, or `fail` the task."
    return WaitStatus(status=found.status, next=step, value=found.value, answered_by=found.answered_by)


@tool(
    WorkerVerbs.complete,
    "worker",
    idempotent=True,
    takes={
        "token": TOKEN,
        "data": "The result as JSON.",
        "text": "The result as text.",
        "artifacts": "Ids or addresses of what was made.",
        "decision_report": "What was decided and why, if the task requires it.",
        "usage": USAGE,
        "verdict": "Whether the output passed its tests, if the task asks for `test-pass`.",
    },
)
async def complete(call: ToolCall) -> EndedTask:
    return await _ended(call)


@tool(
    WorkerVerbs.fail,
    "worker",
    idempotent=True,
    takes={
        "token": TOKEN,
        "error": Parameter("The error, for the next attempt.", kind=Annotated[Text, Meta(min_length=1)], required=True),
        "reason": "A known kind, e.g. network, rate_limit, invalid_input.",
        "retry": "False if another attempt cannot help.",
        "usage": USAGE,
    },
)
async def fail(call: ToolCall) -> EndedTask:
    """Report that you could not do a task, and why. It is retried as its settings say."""
    return await _ended(call)


@tool(WorkerVerbs.release, "worker", idempotent=True, takes={"token": TOKEN, "reason": None})
async def release(call: ToolCall) -> EndedTask:
    """Return a task untried, for another agent. Costs no attempt."""
    return await _ended(call)


async def _ended(call: ToolCall) -> EndedTask:
    outcome: Outcome = await call.run(call.session.agent_queue)
    call.session.stop_heartbeats(call["token"])
    return EndedTask(task_id=outcome.task_id, status=outcome.status or "", next=MORE, repeated=outcome.repeated)
