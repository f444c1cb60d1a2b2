"""Converts a handler's return value to the result to send, and to OpenTelemetry attributes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shiftwork import tracing
from shiftwork.model.reports import Completion
from shiftwork.worker import gen_ai
from shiftwork.worker.context import Context, Done, Fail, Release, Suspended
from shiftwork.worker.outbox import PendingResult
from shiftwork.worker.slots import RunningHandler


@contextmanager
def recorded(work: RunningHandler, agent_id: str, provider: str | None) -> Iterator[None]:
    """Record an attempt's outcome on its span, if tracing or metrics are on."""
    if not tracing.is_on() and tracing.meter() is None:
        yield
        return
    began, error = time.monotonic(), None
    try:
        yield
    except BaseException as raised:
        error = raised.reason if isinstance(raised, Fail) else type(raised).__name__
        error = None if isinstance(raised, Suspended | Release) else error
        raise
    finally:
        context, held = work.context, work.assignment
        used, session = context.spent_so_far, context.session_id or context.task.session_id
        about = (agent_id, provider, held.model, used.model, used.tokens_in, used.tokens_out)
        gen_ai.note(gen_ai.Invocation(*about, session, time.monotonic() - began, error))


def done(work: RunningHandler, data: Any) -> PendingResult:
    """The result of a handler, with its usage. It is validated when it is submitted."""
    if type(data) is dict or not isinstance(data, Done):  # the first check covers most, and is cheap
        return PendingResult(work.claim, Completion(data, usage=work.context.usage(), token=work.claim))
    if data.usage is not None:
        work.context.spent(**msgspec.to_builtins(data.usage))
    stated = {**data.fields(), "usage": work.context.usage()}
    return PendingResult(work.claim, Completion(**stated, token=work.claim), data.once_accepted)


async def tested(context: Context, data: Any) -> Done:
    """The handler's result, with the verdict of the task's tests unless it already has one."""
    done = data if isinstance(data, Done) else Done(data)
    return done if done.verdict is not None else msgspec.structs.replace(done, verdict=await context.run_tests())
