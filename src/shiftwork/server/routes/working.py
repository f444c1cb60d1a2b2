"""What agents do: claim work, hold it, hand it in or give it back."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from shiftwork.core import ids
from shiftwork.core.errors import (
    AgentUnavailable,
    AgentUnregistered,
    CircularDependency,
    DuplicateTask,
    FenceRequired,
    FolderUnavailable,
    IdempotencyKeyRequired,
    IdInUse,
    InputError,
    LeaseLost,
    LockTimeout,
    NotFound,
    NotYourClaim,
    QueueFull,
    QuotaExceeded,
    ReportRequired,
    SpawnLimit,
    TooManyRequests,
    UnknownDependency,
    UnknownReference,
    UnknownSetting,
    WrongState,
)
from shiftwork.core.task import Task
from shiftwork.queue import check
from shiftwork.queue.claim import Assignment, ClaimAnswer
from shiftwork.queue.content.inputs import Input
from shiftwork.queue.face.working import Problem, Report
from shiftwork.queue.in_hand import BeatAnswer
from shiftwork.queue.queue import Queue
from shiftwork.queue.replies import Repeated
from shiftwork.server import spanning
from shiftwork.server.ask import Ask, outcomes, plain
from shiftwork.server.door import Doors, Query, ViewQuery
from shiftwork.wire.shapes import (
    Assigned,
    ClaimBody,
    ClaimReply,
    ClaimToken,
    CompleteBatch,
    CompleteBody,
    FailBatch,
    FailBody,
    HeartbeatBatch,
    HeartbeatBody,
    HeartbeatReply,
    Heartbeats,
    Held,
    MessageBody,
    OutcomeReply,
    Outcomes,
    ProgressBody,
    ReleaseBody,
    SessionBody,
    SpawnBody,
    SubmittedBatch,
    TaskList,
    TokenBatch,
    VerdictBody,
)

door = Doors("Working")
HOLDING = (NotFound, LeaseLost, WrongState, FenceRequired, NotYourClaim)
SUBMITTING = (NotFound, IdInUse, DuplicateTask, CircularDependency, UnknownDependency, UnknownReference) + (
    IdempotencyKeyRequired,
    QueueFull,
    QuotaExceeded,
    TooManyRequests,
    UnknownSetting,
)
HELD_FIELDS = frozenset(Held.__struct_fields__)


# -- claiming ----------------------------------------------------------------------------------------------------


@door(
    "POST /api/tasks/claim",
    "work",
    body=ClaimBody,
    query=ViewQuery,
    answer=ClaimReply,
    errors=(AgentUnregistered, AgentUnavailable, LockTimeout, FolderUnavailable, TooManyRequests),
)
async def claim(ask: Ask, body: ClaimBody) -> Any:
    """Claim the best work for an agent, waiting for it up to 25 seconds.

    The answer comes as soon as there is work; for an agent that holds all it may, within `poll_interval_sec` of its
    having room again. An agent that names none of `types` gets any type it is able to do.
    Without `agent_id`, work is claimed for the agent it is meant for: that is for a runtime that hosts several.
    """
    if body.agent_id is None and body.runtime_id is None:
        raise InputError("a claim names its agent, its runtime, or both", where="agent_id")
    once = ask.queue.caller.once
    if once is not None:  # by which its claims are found again
        ask.queue = ask.queue.speaking_as(ask.queue.caller._replace(request_id=once.key))
    try:
        with ask.house.waits.place(ask.who) if body.wait_sec else nullcontext():
            work = _claim_anywhere(ask, body) if ask.spans else _claim(ask, body, body.wait_sec)
            answer = await ask.while_wanted(work) or ClaimAnswer([])
    except Repeated:
        return await _made_before(ask, body)
    if answer.assignments and ask.has_hung_up:
        await _give_back(ask, answer)
    return _claimed(ask, answer)


async def _claim_anywhere(ask: Ask, body: ClaimBody) -> ClaimAnswer:
    """From the first workspace that has work; the rest of the call is about that one."""

    async def look(queue: Queue) -> ClaimAnswer:
        ask.queue = queue
        return await _claim(ask, body, 0)

    ask.queue, answer = await spanning.claim(ask.queue, ask.house.hub, body.wait_sec, look)
    return answer


async def _claim(ask: Ask, body: ClaimBody, wait_sec: float) -> ClaimAnswer:
    options: dict[str, Any] = {
        "start": body.start,
        "types": body.types,
        "capabilities": body.capabilities,
        "models": body.models,
        "fifo": body.fifo,
    }
    if body.agent_id is None:
        assert body.runtime_id is not None
        return await ask.queue.claim_for_runtime(body.runtime_id, body.count, wait=wait_sec, **options)
    return await ask.queue.claim_answer(body.agent_id, body.count, wait=wait_sec, runtime_id=body.runtime_id, **options)


async def _give_back(ask: Ask, answer: ClaimAnswer) -> None:
    """The caller has gone while its claim was made: nobody would work on it."""
    queue = ask.queue.speaking_as(ask.queue.caller._replace(once=None))
    await queue.release_many([assignment.token for assignment in answer.assignments], "whoever claimed it has gone")


async def _made_before(ask: Ask, body: ClaimBody) -> Any:
    """Of the claims that the same request has made already, those that its agent still holds."""
    tasks = await ask.queue.claims_made(body.agent_id or body.runtime_id or "", ask.queue.caller.request_id or "")
    claimed = [(task, await _inputs(ask, task)) for task in tasks]
    if ask.view is not None:
        return _in_view(ask, claimed)
    return ClaimReply([_assigned(task, inputs) for task, inputs in claimed])


async def _inputs(ask: Ask, task: Task) -> list[Input]:
    refers = bool(task.spec and task.spec.get("context_refs"))
    return await ask.queue.inputs(task.id) if refers else []


class ClaimsQuery(Query, kw_only=True):
    """Whose claims, made by which request."""

    who: str
    request: str


@door("GET /api/claims", "work", query=ClaimsQuery, answer=TaskList)
async def claims_made(ask: Ask) -> Any:
    """What an agent or a runtime holds by the claim it sent with the Idempotency-Key `request`."""
    return TaskList(await ask.queue.claims_made(ask.query.who, ask.query.request))


class HolderQuery(Query):
    """Who says that it holds the task."""

    agent_id: str | None = None
    runtime_id: str | None = None


@door("GET /api/tasks/{task_id}/claim", "work", query=HolderQuery, answer=ClaimToken, errors=HOLDING)
async def current_token(ask: Ask) -> Any:
    """The token of the claim under which a task is held, or was last, for whoever made it and has lost it."""
    holder = {"agent_id": ask.query.agent_id, "runtime_id": ask.query.runtime_id}
    return ClaimToken(await ask.queue.current_token(ask.path["task_id"], **holder))


def _claimed(ask: Ask, answer: ClaimAnswer) -> Any:
    if ask.view is not None:
        return _in_view(ask, [(assignment.task(), assignment.inputs) for assignment in answer.assignments])
    assigned = [_handed(assignment) for assignment in answer.assignments]
    return ClaimReply(assigned, list(answer.closed), answer.no_fit, answer.at_capacity, answer.slow_down_sec)


def _in_view(ask: Ask, claimed: list[tuple[Task, list[Input]]]) -> dict[str, Any]:
    view = ask.view
    assert view is not None
    return view.assignments_out(
        [{**view.assignment_out(plain(task)), "token": _token(task), "inputs": inputs} for task, inputs in claimed]
    )


def _token(task: Task) -> str:
    return ids.token(task.id, task.fence)


def _handed(assignment: Assignment) -> Assigned:
    return Assigned(
        assignment.token,
        assignment.token,
        assignment.task(),
        assignment.ack_required_by,
        assignment.execution_deadline,
        assignment.heartbeat_interval_sec,
        assignment.model,
        assignment.inputs,
    )


def _assigned(task: Task, inputs: list[Input]) -> Assigned:
    terms = task.claim
    return Assigned(
        _token(task),
        _token(task),
        task,
        terms.ack_required_by,
        terms.execution_deadline,
        terms.heartbeat_interval_sec,
        terms.model,
        inputs,
    )


# -- holding -----------------------------------------------------------------------------------------------------


def _in_document(body: Any) -> tuple[Held, dict[str, Any]]:
    """A body in a document's names, parted into which claim it is about and what it says."""
    held = check.read({name: body[name] for name in HELD_FIELDS & body.keys()}, Held)
    return held, {name: value for name, value in body.items() if name not in HELD_FIELDS}


@door("POST /api/tasks/{task_id}/start", "work", body=Held, query=ViewQuery, answer=OutcomeReply, errors=HOLDING)
async def start(ask: Ask, body: Held) -> Any:
    """Acknowledge a claim: the work begins."""
    told = await ask.queue.start(await ask.token(body))
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/heartbeat",
    "work",
    body=HeartbeatBody,
    query=ViewQuery,
    answer=HeartbeatReply,
    errors=HOLDING,
)
async def heartbeat(ask: Ask, body: HeartbeatBody) -> Any:
    """Extend the lease of one task; answers continue, cancel, lost or yield."""
    told = await ask.queue.heartbeat(await ask.token(body), body.progress, body.usage)
    return _beaten(told)


def _beaten(told: BeatAnswer) -> HeartbeatReply:
    return HeartbeatReply(told.task_id, told.action, told.reason, told.slow_down_sec)


@door(
    "POST /api/tasks/{task_id}/progress",
    "work",
    body=ProgressBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=HOLDING,
    viewed_body=True,
)
async def progress(ask: Ask, body: Any) -> Any:
    """Say how far the work is; also a sign of life."""
    if ask.view is None:
        held, value = body, body.progress
    else:
        held, said = _in_document(body)
        value = said["progress"] if said.keys() == {"progress"} else said
    told = await ask.queue.progress(await ask.token(held), value)
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/messages", "work", body=MessageBody, query=ViewQuery, answer=OutcomeReply, errors=HOLDING
)
async def message(ask: Ask, body: MessageBody) -> Any:
    """Tell what the agent is doing: a tool call, text, or an error."""
    told = await ask.queue.message(await ask.token(body), body.kind, body.text, body.data)
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/session", "work", body=SessionBody, query=ViewQuery, answer=OutcomeReply, errors=HOLDING
)
async def pin_session(ask: Ask, body: SessionBody) -> Any:
    """Keep the agent's own conversation with the task, so that a retry can resume it."""
    told = await ask.queue.pin_session(await ask.token(body), body.session_id, body.work_dir)
    return await ask.task_after(told)


# -- ending ------------------------------------------------------------------------------------------------------


@door(
    "POST /api/tasks/{task_id}/complete",
    "work",
    body=CompleteBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=(*HOLDING, ReportRequired, UnknownReference),
    viewed_body=True,
)
async def complete(ask: Ask, body: Any) -> Any:
    """Hand in a result. It is accepted once, however often it is sent.

    In a view it is the document's own record of a result; one that says that the work failed is a failed attempt.
    """
    held: Held = body
    if ask.view is not None:
        held, said = _in_document(body)
        await _check_named(ask, said)
        found = ask.view.result_in(said)
        if _has_failed(found):
            return await _fail(ask, held, _failure(found))
        body = check.read(found, CompleteBody)
    told = await ask.queue.complete(
        await ask.token(held),
        body.data,
        text=body.text,
        artifacts=body.artifacts,
        decision_report=body.decision_report,
        usage=body.usage,
        verdict=body.verdict,
    )
    return await ask.task_after(told)


async def _check_named(ask: Ask, said: dict[str, Any]) -> None:
    """A result names its task; it must be the one that the call is about."""
    for name in ("task_id", "id"):
        if isinstance(said.get(name), str) and not await ask.is_same_task(said[name], ask.path["task_id"]):
            raise InputError("the result is of another task", where=name)


def _has_failed(found: dict[str, Any]) -> bool:
    """Whether a result says that the work failed; what only says how it went is taken out."""
    status, success = found.pop("status", None), found.pop("success", None)
    if status not in {None, "success", "failed"}:
        raise InputError(f"{status!r} is no end of an attempt", where="status")
    said = {True: "success", False: "failed"}.get(success) if isinstance(success, bool) else success
    if success is not None and (not isinstance(success, bool) or status not in {None, said}):
        raise InputError("expected true or false, as the status says", where="success")
    failed = status == "failed" or success is False
    if not failed and found.pop("error", None) is not None:
        raise InputError("a result that succeeded has no error", where="error")
    return failed


def _failure(found: dict[str, Any]) -> FailBody:
    """What is known of a failed attempt. A report that comes with it is kept with the data."""
    report, data = found.pop("decision_report", None), found.pop("data", None)
    if report is not None:
        data = {"output": data, "decisionReport": report}
    if (text := found.pop("text", None)) is not None and data is None:
        data = text
    return check.read({**found, "data": data}, FailBody)


@door(
    "POST /api/tasks/{task_id}/verdict", "work", body=VerdictBody, query=ViewQuery, answer=OutcomeReply, errors=HOLDING
)
async def verdict(ask: Ask, body: VerdictBody) -> Any:
    """Say whether an output that was handed in without a verdict has passed its tests."""
    token = await ask.token(body)
    told = await ask.queue.verdict(token, passed=body.passed, evidence=body.evidence, note=body.note)
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/fail",
    "work",
    body=FailBody,
    query=ViewQuery,
    answer=OutcomeReply,
    errors=HOLDING,
    viewed_body=True,
)
async def fail(ask: Ask, body: Any) -> Any:
    """Report a failed attempt; answers what became of the task."""
    held: Held = body
    if ask.view is not None:
        held, said = _in_document(body)
        body = check.read(ask.view.failure_in(said), FailBody)
    return await _fail(ask, held, body)


async def _fail(ask: Ask, held: Held, body: FailBody) -> Any:
    reason = ask.view.reason_in(body.reason) if ask.view is not None and body.reason else body.reason
    told = await ask.queue.fail(
        await ask.token(held),
        reason,
        body.error,
        usage=body.usage,
        data=body.data,
        retry=body.retry,
        provider=body.provider,
        account=body.account,
        model=body.model,
    )
    return await ask.task_after(told)


@door(
    "POST /api/tasks/{task_id}/release", "work", body=ReleaseBody, query=ViewQuery, answer=OutcomeReply, errors=HOLDING
)
async def release(ask: Ask, body: ReleaseBody) -> Any:
    """Give a task back without cost."""
    told = await ask.queue.release(await ask.token(body), body.reason)
    return await ask.task_after(told)


# -- subtasks ----------------------------------------------------------------------------------------------------


@door(
    "POST /api/tasks/{task_id}/spawn",
    "work",
    body=SpawnBody,
    query=ViewQuery,
    answer=SubmittedBatch,
    status=201,
    errors=(*HOLDING, *SUBMITTING, SpawnLimit),
    viewed_body=True,
)
async def spawn(ask: Ask, body: Any) -> Any:
    """Add subtasks to the task's own DAG. With `wait` its slot is given back until they are done.

    With a `name` this happens once in the life of the task: called again, also by a later attempt, it spawns nothing
    and answers with the same subtasks; where they are all done, `wait` gives nothing back.
    """
    if ask.view is not None:
        body = check.read(ask.all_ours(body), SpawnBody)
    return await ask.submitted(await ask.queue.spawn(await ask.token(body), body.tasks, wait=body.wait, name=body.name))


# -- batches -----------------------------------------------------------------------------------------------------


@door("POST /api/batch/start", "work", body=TokenBatch, answer=Outcomes, errors=(FenceRequired,))
async def start_many(ask: Ask, body: TokenBatch) -> Any:
    """Acknowledge several claims; each has its own outcome."""
    return outcomes(await ask.queue.start_many(body.tokens))


@door("POST /api/batch/heartbeat", "work", body=HeartbeatBatch, answer=Heartbeats, errors=(FenceRequired,))
async def heartbeat_many(ask: Ask, body: HeartbeatBatch) -> Any:
    """Extend the leases of several tasks."""
    told = await ask.queue.heartbeat_many([(beat.token, beat.progress, beat.usage) for beat in body.heartbeats])
    return Heartbeats([_beaten(beat) for beat in told])


@door("POST /api/batch/complete", "work", body=CompleteBatch, answer=Outcomes, errors=(FenceRequired,))
async def complete_many(ask: Ask, body: CompleteBatch) -> Any:
    """Hand in several results; each has its own outcome."""
    reports = [Report(*(getattr(item, name) for name in Report._fields)) for item in body.reports]
    return outcomes(await ask.queue.complete_many(reports))


@door("POST /api/batch/fail", "work", body=FailBatch, answer=Outcomes, errors=(FenceRequired,))
async def fail_many(ask: Ask, body: FailBatch) -> Any:
    """Report several failed attempts; each has its own outcome."""
    problems = [Problem(*(getattr(item, name) for name in Problem._fields)) for item in body.problems]
    return outcomes(await ask.queue.fail_many(problems))


@door("POST /api/batch/release", "work", body=TokenBatch, answer=Outcomes, errors=(FenceRequired,))
async def release_many(ask: Ask, body: TokenBatch) -> Any:
    """Give several tasks back; each has its own outcome."""
    return outcomes(await ask.queue.release_many(body.tokens, body.reason))
