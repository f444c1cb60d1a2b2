"""Calls a handler: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

from shiftwork.worker import threads
from shiftwork.worker.context import Context, Handler

Call = Callable[[Context], Awaitable[Any]]


def as_coroutine(handler: Handler) -> Call:
    """The handler as a coroutine, with the same result and exceptions."""
    if threads.is_async(handler):
        return cast(Call, handler)
    return functools.partial(_call_plain, handler)


async def _call_plain(handler: Handler, context: Context) -> Any:
    return await threads.call(handler, context, name=context.type)
