"""Calls a plain function in a thread of its own, so that it can block."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


async def call(function: Callable[..., Any], *args: Any, name: str) -> Any:
    """Call a function and return its result: a coroutine function on the loop, any other in a thread."""
    if is_async(function):
        return await function(*args)
    result = await in_thread(function, *args, name=name)
    return await result if inspect.isawaitable(result) else result


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def in_thread(function: Callable[..., Any], *args: Any, name: str) -> Any:
    """Run each call in a new thread, not a pool's: one that never ends blocks neither a pool nor the process's end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    variables = contextvars.copy_context()

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = variables.run(function, *args), None
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed: no one waits any more
            loop.call_soon_threadsafe(tell, outcome)

    def tell(outcome: tuple[Any, BaseException | None]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    threading.Thread(target=run, name=f"shiftwork-{name}", daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result
