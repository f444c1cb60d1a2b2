"""Calls a handler: a coroutine on the loop, a plain function in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from shiftwork.worker.context import Context

Handler = Callable[[Context], Awaitable[Any]] | Callable[[Context], Any]


Call = Callable[[Context], Awaitable[Any]]


def as_coroutine(handler: Handler) -> Call:
    """The handler as something to await: what it returns is returned, what it raises is raised."""
    if _is_async(handler):
        return cast(Call, handler)
    return functools.partial(_call_plain, handler)


async def _call_plain(handler: Handler, context: Context) -> Any:
    result = await _in_thread(handler, context)
    return await result if inspect.isawaitable(result) else result


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _in_thread(function: Callable[[Context], Any], context: Context) -> Any:
    """A thread for each call, not of a pool: one that never ends takes no place, and lets the process end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    variables = contextvars.copy_context()

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = variables.run(function, context), None
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            outcome = None, error
        with suppress(RuntimeError):  # the loop has gone: nobody waits any more
            loop.call_soon_threadsafe(tell, outcome)

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    threading.Thread(target=run, name=f"shiftwork-{context.type}", daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result


def describe(error: BaseException) -> str:
    """The error in a line; also one that cannot even describe itself."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the user's own __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
