"""Keeps a loop going when a task that a handler started leaves it by `SystemExit` or `KeyboardInterrupt`."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("shiftwork.worker")
T = TypeVar("T")


def run_through_exits(runner: asyncio.Runner, main: Coroutine[Any, Any, T]) -> T:
    """`runner.run`, which continues where a handler's task has broken out of it.

    asyncio keeps these two with the task that raised them, for anyone who awaits it, and throws them out of the loop as
    well. All else in the loop is as it was: run again, it hands them to the handler alone.
    """
    main_task: list[asyncio.Task[T]] = []

    async def tracked() -> T:
        main_task.append(asyncio.current_task())  # type: ignore[arg-type]  # there is one, and it returns what we do
        return await main

    run: Callable[[], T] = functools.partial(runner.run, tracked())
    while True:
        try:
            return run()
        except (SystemExit, KeyboardInterrupt) as error:
            if not main_task or _is_over(main_task[0]):
                raise
            log.warning("a task that a handler has started raised %s; the worker continues", type(error).__name__)
            run = functools.partial(runner.get_loop().run_until_complete, main_task[0])


def _is_over(main_task: asyncio.Task[Any]) -> bool:
    """Whether it ends anyhow, or an interrupt is the keyboard's: a worker at work hears that one by its loop."""
    listens = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return main_task.done() or main_task.cancelling() > 0 or not listens
