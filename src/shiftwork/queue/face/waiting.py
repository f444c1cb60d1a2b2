"""What tasks wait for besides other tasks, and what people and programs say to them: signals, answers, approvals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from shiftwork.core.errors import InputError
from shiftwork.core.settings import Bounds
from shiftwork.core.task import Wait
from shiftwork.policy import verdict
from shiftwork.queue import check, read
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.fence import Outcome
from shiftwork.queue.waits import approvals, waits
from shiftwork.queue.waits.approvals import Asked, Kind
from shiftwork.queue.waits.waits import KEEP_SIGNALS_SEC, NewWait, Signalled
from shiftwork.store.store import Tx

KINDS: tuple[str, ...] = get_args(Kind)
FURTHEST = 1e11
"""No time lies later: it would be no date any more."""
_BOUNDS = Bounds()


class Waiting(Handle):
    """Verbs of waits and of those who end them."""

    async def wait(
        self,
        token: str,
        name: str,
        *,
        until: float | None = None,
        signal: str | None = None,
        question: str | None = None,
        schema: Mapping[str, Any] | None = None,
        timeout_sec: float | None = None,
    ) -> Wait:
        """Wait under this name for a time, a signal or a person's answer; the slot is given back while it is open.

        When the task runs again, the same call answers what came of it: `met` with its value, or `expired`.
        """
        new = _new_wait(name, until, signal, question, schema, timeout_sec)
        return await self._run(waits.wait, await self._token(token), new)

    async def signal(self, name: str, data: Any = None, *, task: str | None = None) -> Signalled:
        """Send a signal to all tasks that wait for it, or to one; it is kept a day for those that wait later."""
        checked = check.name(name, "name")
        value = None if data is None else _json(data, "data")
        uuid = None if task is None else await self._find(task)
        sent = await self._run(waits.signal, self.workspace, checked, value, uuid)
        freed, done = sent.freed, sent.done
        while not done:
            page = await self._run(waits.spread, self.workspace, sent.seq)
            freed, done = freed + page.freed, page.done
        return Signalled(sent.seq, checked, freed, sent.at + KEEP_SIGNALS_SEC)

    async def answer(self, task_id: str, value: Any) -> Outcome:
        """Answer the question that a task asks; it must be what the question's schema says."""
        return await self._run(waits.answer, await self._find(task_id), _json(value, "value"))

    async def approvals(
        self,
        *,
        kind: str | None = None,
        type: str | None = None,  # noqa: A002  # the task's word
        task: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Asked]:
        """What waits for a person: approvals that guards ask for, and questions of agents, by task."""
        if kind is not None:
            check.one_of(kind, KINDS, "kind")
        count = check.page(limit)
        cursor = check.cursor(after)
        check.text(type, "type")

        async def load(tx: Tx) -> list[Asked]:
            uuid = None if task is None else await read.must_find(tx, self._engine, self.workspace, task)
            return await approvals.listed(tx, self.workspace, kind, type, uuid, cursor, count)

        return await self._read(load)

    async def approve(
        self, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
    ) -> Outcome:
        """Let a task run that a guard has stopped; with `revision` only if the work is still what was looked at."""
        return await self._decide(task_id, note, revision, version, approved=True)

    async def reject(
        self, task_id: str, *, revision: str | None = None, note: str | None = None, version: int | None = None
    ) -> Outcome:
        """Cancel a task that a guard has stopped."""
        return await self._decide(task_id, note, revision, version, approved=False)

    async def _decide(
        self, task_id: str, note: str | None, revision: str | None, version: int | None, *, approved: bool
    ) -> Outcome:
        uuid, said = await self._find(task_id), check.text(note, "note")
        seen = check.text(revision, "revision", 255)
        return await self._run(approvals.decide, uuid, said, seen, version, approved=approved)


def _new_wait(
    name: str,
    until: float | None,
    signal: str | None,
    question: str | None,
    schema: Mapping[str, Any] | None,
    timeout_sec: float | None,
) -> NewWait:
    """What to wait for, once it makes sense."""
    checked = check.name(name, "name")
    if sum(given is not None for given in (until, signal, question)) != 1:
        raise InputError("a wait is for a time, a signal or an answer", where="until", mend="Give exactly one of them.")
    if until is not None:
        if timeout_sec is not None:
            raise InputError("a time that is waited for has no timeout", where="timeout_sec")
        return NewWait(checked, "time", until=_moment(until, "until"))
    if timeout_sec is not None and _moment(timeout_sec, "timeout_sec") <= 0:
        raise InputError("expected more than 0 seconds", where="timeout_sec")
    if signal is not None:
        return NewWait(checked, "signal", timeout_sec=timeout_sec, signal=check.name(signal, "signal"))
    asked = check.text(question, "question")
    if not asked:
        raise InputError("must not be empty", where="question")
    return NewWait(checked, "person", timeout_sec=timeout_sec, question=asked, schema=_schema(schema))


def _moment(value: float, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"expected a number of seconds, got {type(value).__name__}", where=where)
    if abs(value) > FURTHEST or not math.isfinite(value):  # in this order: a huge integer is no float
        raise InputError(f"expected a number of seconds up to {FURTHEST:g}", where=where)
    return float(value)


def _schema(schema: Mapping[str, Any] | None) -> str | None:
    if schema is None:
        return None
    text = _json(schema, "schema")
    verdict.check_schema(schema, "schema")
    return text


def _json(value: Any, where: str) -> str:
    return check.to_json(value, _BOUNDS.body_bytes, _BOUNDS, where)
