"""Implements the operations on waits, signals and approvals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shiftwork.engine import read, spawn
from shiftwork.engine.engine import Caller, Engine
from shiftwork.model import check
from shiftwork.model.errors import InputError
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.task import Failures
from shiftwork.model.times import Duration, Time, epoch, seconds
from shiftwork.operation.local import Call, implements, reading
from shiftwork.settings.model import Bounds
from shiftwork.store.store import Tx
from shiftwork.validation import policy as verdict
from shiftwork.waits import approvals, open_waits
from shiftwork.waits.api import Approvals, Waits
from shiftwork.waits.model import ApprovalRequest, Kind, Signalled, WaitResult
from shiftwork.waits.open_waits import KEEP_SIGNALS_SEC, NewWait

_BOUNDS = Bounds()


@implements(Waits.request)
async def request(
    call: Call,
    token: str | Token,
    *,
    tasks: Sequence[str] | None = None,
    failures: Failures = "wait",
    name: str | None = None,
    until: Time | None = None,
    signal: str | None = None,
    question: str | None = None,
    schema: Mapping[str, Any] | None = None,
    timeout_sec: Duration | None = None,
) -> WaitResult:
    if tasks is not None and name is None:
        return await call.run(spawn.wait_for, await call.token(token), list(tasks), any_end=failures == "return")
    if tasks is not None or name is None:
        raise InputError("a wait is for tasks, or has a name", where="name")
    new = _new_wait(name, epoch(until), signal, question, schema, seconds(timeout_sec))
    found = await call.run(open_waits.wait, await call.token(token), new)
    return WaitResult("pending" if found.status == "open" else "running", found)


def _new_wait(
    name: str,
    until: float | None,
    signal: str | None,
    question: str | None,
    schema: Mapping[str, Any] | None,
    timeout_sec: float | None,
) -> NewWait:
    if sum(given is not None for given in (until, signal, question)) != 1:
        raise InputError("a wait is for a time, a signal or an answer", where="until", hint="Give exactly one of them.")
    for where, number in (("until", until), ("timeout_sec", timeout_sec)):
        if number is not None and not math.isfinite(number):
            raise InputError("expected a finite number of seconds", where=where)
    if until is not None:
        if timeout_sec is not None:
            raise InputError("a wait for a time takes no timeout", where="timeout_sec")
        return NewWait(name, "time", until=until)
    if signal is not None:
        return NewWait(name, "signal", timeout_sec=timeout_sec, signal=signal)
    if not question:
        raise InputError("must not be empty", where="question")
    return NewWait(name, "person", timeout_sec=timeout_sec, question=question, schema=_schema(schema))


def _schema(schema: Mapping[str, Any] | None) -> str | None:
    if schema is None:
        return None
    text = _json(schema, "schema")
    verdict.check_schema(schema, "schema")
    return text


def _json(value: Any, where: str) -> str:
    return check.to_json(value, _BOUNDS.body_bytes, _BOUNDS, where)


@implements(Waits.signal)
async def signal(call: Call, name: str, data: Any = None, *, task: str | None = None) -> Signalled:
    value = None if data is None else _json(data, "data")
    uuid = None if task is None else await call.find(task)
    sent = await call.run(open_waits.signal, call.workspace, name, value, uuid)
    freed, done = sent.freed, sent.done
    while not done:
        page = await call.run(open_waits.spread, call.workspace, sent.seq)
        freed, done = freed + page.freed, page.done
    return Signalled(sent.seq, name, freed, sent.at + KEEP_SIGNALS_SEC)


@implements(Approvals.approve)
async def approve(
    call: Call, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
) -> Outcome:
    return await call.run(approvals.decide, await call.find(task_id), note, revision, version, approved=True)


@implements(Approvals.reject)
async def reject(
    call: Call, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
) -> Outcome:
    return await call.run(approvals.decide, await call.find(task_id), note, revision, version, approved=False)


@implements(Approvals.answer)
async def answer(call: Call, task_id: str, value: Any) -> Outcome:
    return await call.run(open_waits.answer, await call.find(task_id), _json(value, "value"))


@reading(Approvals.list)
async def list_approvals(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    *,
    kind: Kind | None = None,
    type: str | None = None,
    task: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[ApprovalRequest]:
    cursor = check.cursor(after)
    uuid = None if task is None else await read.must_find(tx, engine, workspace, task)
    return await approvals.listed(tx, workspace, kind, type, uuid, cursor, limit)
