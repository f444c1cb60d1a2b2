"""Calls a handler: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

from shiftwork.worker import threads
from shiftwork.worker.context import Context

Handler = Callable[[Context], Awaitable[Any]] | Callable[[Context], Any]


Call = Callable[[Context], Awaitable[Any]]


def as_coroutine(handler: Handler) -> Call:
    """The handler as something to await: what it returns is returned, what it raises is raised."""
    if threads.is_async(handler):
        return cast(Call, handler)
    return functools.partial(_call_plain, handler)


async def _call_plain(handler: Handler, context: Context) -> Any:
    return await threads.call(handler, context, name=context.type)


def describe(error: BaseException) -> str:
    """The error in a line; also one that cannot even describe itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the user's own __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
