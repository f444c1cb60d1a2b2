"""Implements the operations on claims, except claiming itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shiftwork import tracing
from shiftwork.engine import claim_lookup, claim_requests, finish, leases, read
from shiftwork.engine import spawn as spawning
from shiftwork.engine.assignment import ClaimResult
from shiftwork.engine.checked_reports import (
    CheckedResult,
    check_failure,
    check_result,
    check_usage,
    check_verdict,
    to_json,
)
from shiftwork.engine.claims_api import ClaimBatch, Claims, Spawning, WorkerVerbs
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.fence import Verb, for_each
from shiftwork.engine.leases import Beat
from shiftwork.engine.prepare import prepare, traced, yield_to_loop
from shiftwork.model import check
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.outcome import Outcome, Token, unknown
from shiftwork.model.reports import (
    Completion,
    Failure,
    Heartbeat,
    HeartbeatItem,
    HeartbeatReply,
    MessageKind,
    TaskFailure,
    TaskResult,
)
from shiftwork.model.task import NO_USAGE, Failures, NewTask, NewVerdict, Submitted, Task, Usage
from shiftwork.model.times import Duration, seconds
from shiftwork.operation.local import Call, implements, only, reading
from shiftwork.store.store import Tx
from shiftwork.validation import verdicts

GivenUsage = Usage | Mapping[str, Any] | None


@implements(Claims.request)
async def request(
    call: Call,
    agent_id: str | None = None,
    count: int = 1,
    *,
    wait: Duration = 0,
    runtime_id: str | None = None,
    start: bool = False,
    types: Sequence[str] | None = None,
    capabilities: Sequence[str] = (),
    models: Sequence[str] = (),
    fifo: bool = False,
    ahead: int = 0,
) -> ClaimResult:
    wanted = claim_requests.Wanted(
        count,
        start,
        None if types is None else check.names(types, "types"),
        check.names(capabilities, "capabilities"),
        check.names(models, "models"),
        fifo,
        ahead,
    )
    if agent_id is not None:
        answer = await claim_requests.for_agent(call, agent_id, runtime_id, wanted, seconds(wait))
    elif runtime_id is not None:
        answer = await claim_requests.for_runtime(call, runtime_id, wanted, seconds(wait))
    else:
        raise InputError("a claim names its agent, its runtime, or both", where="agent_id")
    return ClaimResult(answer.assignments, answer.closed, answer.no_fit, answer.at_capacity, answer.slow_down_sec)


@reading(Claims.made_by_request)
async def made_by_request(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, claimed_by: str, request_id: str
) -> list[Task]:
    return await claim_lookup.made(tx, engine, caller, workspace, claimed_by, request_id)


@reading(Claims.current_token)
async def current_token(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    task_id: str,
    *,
    agent_id: str | None = None,
    runtime_id: str | None = None,
) -> str:
    uuid = await read.find(tx, workspace, task_id)
    return (await claim_lookup.current(tx, caller, uuid, agent_id, runtime_id)).text


async def _each(call: Call, verb: Verb, items: Sequence[Any]) -> list[Outcome]:
    """Run a verb for many items, each with its own outcome, including those whose token names no task."""
    known = [unknown(item) if isinstance(item, NotFound) else item for item in items]
    return await call.run(for_each, verb, known)


@implements(WorkerVerbs.start)
async def start_one(call: Call, token: str | Token) -> Outcome:
    if call.caller.idempotency is not None:
        return only(await start(call, [token]))
    answer: Outcome = await call.coalescer(_start).call((await call.token(token), call.caller.request_id))
    return answer.unwrap()


async def _start(call: Call, items: Sequence[tuple[Token, str | None]]) -> list[Outcome]:
    return await call.run(leases.start, [token for token, _ in items], _requests(items))


@implements(ClaimBatch.start)
async def start(call: Call, tokens: Sequence[str | Token]) -> list[Outcome]:
    return await _each(call, leases.start, await call.tokens(tokens))


@implements(WorkerVerbs.heartbeat)
async def heartbeat_one(
    call: Call, token: str | Token, progress: Any = None, usage: GivenUsage = None
) -> HeartbeatReply:
    beat = Beat(await call.token(token), _json_or_none(progress), check_usage(usage) or NO_USAGE)
    if call.caller.idempotency is not None:
        return (await call.run(leases.heartbeat, [beat]))[0]
    answer: HeartbeatReply = await call.coalescer(_heartbeat).call((beat, call.caller.request_id))
    return answer


async def _heartbeat(call: Call, items: Sequence[tuple[Beat, str | None]]) -> list[HeartbeatReply]:
    requests = _requests((beat.token, request_id) for beat, request_id in items)
    return await call.run(leases.heartbeat, [beat for beat, _ in items], requests)


def _requests(items: Iterable[tuple[Token, str | None]]) -> dict[Token, str]:
    """The request id of each claim, if calls were joined."""
    return {token: request_id for token, request_id in items if request_id is not None}


@implements(ClaimBatch.heartbeat)
async def heartbeat(call: Call, heartbeats: Sequence[Heartbeat | Mapping[str, Any]]) -> list[HeartbeatReply]:
    given = [
        each if isinstance(each, Heartbeat | HeartbeatItem) else check.read(each, Heartbeat, f"heartbeats[{place}]")
        for place, each in enumerate(heartbeats)
    ]
    tokens = await call.tokens([each.token for each in given])
    return await call.run(
        leases.heartbeat_each, [_beat(token, each) for token, each in zip(tokens, given, strict=True)]
    )


def _beat(token: Token | NotFound, given: Heartbeat | HeartbeatItem) -> Beat | HeartbeatReply:
    if isinstance(token, NotFound):
        return HeartbeatReply(token.facts["task_id"], "lost", token.what)
    return Beat(token, _json_or_none(given.progress), check_usage(given.usage) or NO_USAGE)


def _json_or_none(value: Any) -> str | None:
    return None if value is None else to_json(value, "progress")


@implements(Claims.progress)
async def progress(call: Call, token: str | Token, value: Any = None) -> Outcome:
    return (await call.run(leases.progress, await call.token(token), to_json(value, "progress"))).unwrap()


@implements(Claims.message)
async def message(
    call: Call,
    token: str | Token,
    kind: MessageKind,
    text: str = "",
    data: Mapping[str, Any] | None = None,
) -> Outcome:
    if data is not None:
        to_json(data, "data")
    return (await call.run(leases.message, await call.token(token), kind, text, data)).unwrap()


@implements(Claims.pin_session)
async def pin_session(
    call: Call, token: str | Token, session_id: str | None = None, work_dir: str | None = None
) -> Outcome:
    return (await call.run(leases.pin_session, await call.token(token), session_id, work_dir)).unwrap()


@implements(WorkerVerbs.complete)
async def complete_one(
    call: Call,
    token: str | Token,
    data: Any = None,
    *,
    text: str | None = None,
    artifacts: Sequence[str] = (),
    decision_report: Mapping[str, Any] | None = None,
    usage: GivenUsage = None,
    verdict: NewVerdict | Mapping[str, Any] | None = None,
) -> Outcome:
    given: Any = (data, text, artifacts, decision_report, usage, verdict)  # checked below
    item = check_result(await call.token(token), TaskResult(*given))
    if call.caller.idempotency is not None:
        return only(await _complete(call, [item]))
    item = msgspec.structs.replace(item, request_id=call.caller.request_id)
    answer: Outcome = await call.coalescer(_complete).call(item)
    return answer.unwrap()


@implements(ClaimBatch.complete)
async def complete(call: Call, completions: Sequence[Completion | Mapping[str, Any]]) -> list[Outcome]:
    given: list[Any] = [
        each
        if type(each) is Completion or isinstance(each, TaskResult)  # the first is what our worker sends
        else check.read(each, Completion, f"completions[{place}]")
        for place, each in enumerate(completions)
    ]
    tokens = await call.tokens([each.token for each in given])
    items = [
        token if isinstance(token, NotFound) else check_result(token, each)
        for token, each in zip(tokens, given, strict=True)
    ]
    return await _complete(call, items)


async def _complete(call: Call, items: Sequence[CheckedResult | NotFound]) -> list[Outcome]:
    """Complete in one transaction; if validation takes long, in several, so that other work can run in between."""
    outcomes = await _each(call, finish.complete, items)
    while postponed := [place for place, each in enumerate(outcomes) if each.status is None and each.postponed]:
        left = [items[place] for place in postponed]
        unbooked = [_unbooked(item) for item in left if isinstance(item, CheckedResult)]
        for place, outcome in zip(postponed, await _each(call, finish.complete, unbooked), strict=True):
            outcomes[place] = outcome
    return outcomes


def _unbooked(item: CheckedResult) -> CheckedResult:
    """The completion without its usage, which is already booked."""
    return msgspec.structs.replace(item, result=msgspec.structs.replace(item.result, usage=None))


@implements(Claims.verdict)
async def verdict(
    call: Call,
    token: str | Token,
    *,
    passed: bool,
    evidence: Mapping[str, Any] | None = None,
    note: str | None = None,
) -> Outcome:
    given = check_verdict({"passed": passed, "evidence": evidence, "note": note})
    return (await call.run(verdicts.give, await call.token(token), given)).unwrap()


@implements(WorkerVerbs.fail)
async def fail_one(
    call: Call,
    token: str | Token,
    reason: str | None = None,
    error: str | None = None,
    *,
    usage: GivenUsage = None,
    data: Any = None,
    retry: bool = True,
    provider: str | None = None,
    account: str | None = None,
    model: str | None = None,
) -> Outcome:
    given: Any = (reason, error, usage, data, retry, provider, account, model)  # checked below
    return only(await _each(call, finish.fail, [check_failure(await call.token(token), TaskFailure(*given))]))


@implements(ClaimBatch.fail)
async def fail(call: Call, failures: Sequence[Failure | Mapping[str, Any]]) -> list[Outcome]:
    given: list[Any] = [
        each if isinstance(each, TaskFailure) else check.read(each, Failure, f"failures[{place}]")
        for place, each in enumerate(failures)
    ]
    tokens = await call.tokens([each.token for each in given])
    items = [
        token if isinstance(token, NotFound) else check_failure(token, each)
        for token, each in zip(tokens, given, strict=True)
    ]
    return await _each(call, finish.fail, items)


@implements(WorkerVerbs.release)
async def release_one(call: Call, token: str | Token, reason: str | None = None) -> Outcome:
    return only(await release(call, [token], reason))


@implements(ClaimBatch.release)
async def release(call: Call, tokens: Sequence[str | Token], reason: str | None = None) -> list[Outcome]:
    verb = functools.partial(finish.release, reason=reason)
    return await _each(call, verb, await call.tokens(tokens))


@implements(Spawning.spawn)
async def spawn(
    call: Call,
    token: str | Token,
    tasks: Sequence[NewTask | Mapping[str, Any]],
    *,
    wait: bool = False,
    failures: Failures = "wait",
    name: str | None = None,
) -> list[Submitted]:
    resolver = await call.engine.settings_cache.get(call.engine.store, call.workspace)
    batch = []
    with tracing.span("spawn", "producer", tasks=len(tasks)):
        origin = tracing.current()
        for place, task in enumerate(tasks):
            new = traced(check.read(task, NewTask, f"tasks[{place}]"), origin)
            batch.append(prepare(new, call.workspace, resolver, call.engine.store.now(), f"tasks[{place}]"))
            await yield_to_loop(new, resolver)
    if not batch:
        raise InputError("there is nothing to spawn", where="tasks")
    lanes = await call.engine.lanes.intern(call.engine.store, {prepared.lane for prepared in batch})
    any_end = failures == "return"
    return await call.run(spawning.spawn, await call.token(token), batch, lanes, wait=wait, name=name, any_end=any_end)
