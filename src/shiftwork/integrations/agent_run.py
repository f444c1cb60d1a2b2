"""Shared by the integrations of agent frameworks: the task of a run, calls as steps, approvals, and a log of steps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from shiftwork.model.times import Duration
from shiftwork.worker.context import Context

MAX_NAME_LENGTH = 200
"""The maximum length of a step's name, without the number of a repeated one."""
MAX_SHOWN_LENGTH = 4_000
"""How much of a call's arguments a question shows."""
_RUN: ContextVar[Context | None] = ContextVar("shiftwork_run", default=None)
_TASK: ContextVar[Context | None] = ContextVar("shiftwork_task", default=None)
_COUNTS: WeakKeyDictionary[Context, Counter[str]] = WeakKeyDictionary()


@contextmanager
def running(ctx: Context) -> Iterator[None]:
    """Run the calls made inside as part of this task."""
    run, task = _RUN.set(ctx), _TASK.set(ctx)
    try:
        yield
    finally:
        _TASK.reset(task)
        _RUN.reset(run)


def current() -> Context | None:
    """The task of the run. None outside a run, and inside a step: calls made by a step are part of it.

        The first attempt would number a nested step, and the next would skip it with the outer one: the numbers would
        shift,
    and a call would get another's result.
    """
    return _RUN.get()


def task() -> Context | None:
    """The task of the run, also inside its steps: usage there is booked with the step."""
    return _TASK.get()


def number(ctx: Context, name: str) -> int:
    """Count the calls of this name in the attempt, from 1; each gets the same number in every attempt."""
    counts = _COUNTS.setdefault(ctx, Counter())
    counts[name] += 1
    return counts[name]


async def call(ctx: Context, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a call: stored by an earlier attempt, or computed now and stored as a step."""

    async def alone() -> Any:
        reset = _RUN.set(None)
        try:
            return await function()
        finally:
            _RUN.reset(reset)

    return await ctx.step(fitting(name), alone)


def fitting(name: str) -> str:
    """The name; if it is too long for a step, its beginning and a digest."""
    if len(name) <= MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[: MAX_NAME_LENGTH - 17]} {digest}"


class Decision(msgspec.Struct, frozen=True):
    """A person's decision on a tool call that needs approval."""

    approved: bool
    note: str = ""


DECISION_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "note": {"type": "string", "maxLength": 2000}},
    "required": ["approved"],
    "additionalProperties": False,
}


async def ask_approval(
    ctx: Context, tool: str, arguments: Any, call_id: str, timeout_sec: Duration | None = None
) -> Decision:
    """Ask a person whether the agent may make this call. The slot is released until they answer."""
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    if len(shown) > MAX_SHOWN_LENGTH:
        shown = f"{shown[:MAX_SHOWN_LENGTH]}… ({len(shown)} characters)"
    question = f"The agent wants to call {tool} with {shown}. May it?"
    answer = await ctx.ask(
        fitting(f"approve {tool} {call_id}"), question, schema=DECISION_SCHEMA, timeout_sec=timeout_sec
    )
    return msgspec.convert(answer, Decision)


class StepLog:
    """A list that outlives the attempt: each entry is a step of the task, in order."""

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self._name = name
        self._length: int | None = None
        self._appending = asyncio.Lock()

    async def read(self) -> list[Any]:
        """Return all entries so far."""
        start = f"{self._name} "
        steps = {step.name.removeprefix(start): step.result for step in await self._ctx.read_steps(start)}
        entries = {int(number): result for number, result in steps.items() if number.isdecimal()}
        self._length = len(entries)
        return [entries[number] for number in range(1, len(entries) + 1)]

    async def append(self, entry: Any) -> None:
        """Add an entry, with the usage recorded so far. Call `read` first."""
        async with self._appending:
            assert self._length is not None, "read it first"
            await self._ctx.record_step(f"{self._name} {self._length + 1}", entry)
            self._length += 1
