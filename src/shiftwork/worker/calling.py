"""Calls a handler: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, cast

from shiftwork.worker import threads
from shiftwork.worker.context import Context

Handler = Callable[[Context], Awaitable[Any]] | Callable[[Context], Any]


Call = Callable[[Context], Awaitable[Any]]
MAX_LINE_LENGTH = 2_000
MAX_TRACE_LENGTH = 50_000
"""The most characters of an error that are logged."""


class Shortened(Exception):
    """Replaces an error whose message would flood the log, or is not text, keeping the traceback."""


def as_coroutine(handler: Handler) -> Call:
    """The handler as a coroutine, with the same result and exceptions."""
    if threads.is_async(handler):
        return cast(Call, handler)
    return functools.partial(_call_plain, handler)


async def _call_plain(handler: Handler, context: Context) -> Any:
    return await threads.call(handler, context, name=context.type)


def describe(error: BaseException) -> str:
    """The error in one line, even if its `__str__` fails."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the user's own __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def in_log(error: BaseException) -> BaseException:
    """The error to log: itself, unless its message or its causes' are too long, or are not text."""
    words = "".join(traceback.format_exception(error))
    if len(words) <= MAX_TRACE_LENGTH and words == in_line(words, MAX_TRACE_LENGTH):
        return error
    return Shortened(in_line(describe(error))).with_traceback(error.__traceback__)


def in_line(words: str, limit: int = MAX_LINE_LENGTH) -> str:
    """Text that every log accepts: a UTF-8 file refuses a lone surrogate, and the line would be lost."""
    return words[:limit].encode("utf-8", "replace").decode()
