"""Keeps a loop running when a task started by a handler raises `SystemExit` or `KeyboardInterrupt`."""

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
    """Like `runner.run`, but resumes the loop when a handler's task has broken out of it.

    asyncio stores these two exceptions in the task that raised them, and also raises them out of the loop. The loop is
    otherwise intact: run again, only the handler that awaits the task gets them.
    """
    main_task: list[asyncio.Task[T]] = []

    async def tracked() -> T:
        main_task.append(asyncio.current_task())  # type: ignore[arg-type]  # there is a factory, with the same return type
        return await main

    run: Callable[[], T] = functools.partial(runner.run, tracked())
    while True:
        try:
            return run()
        except (SystemExit, KeyboardInterrupt) as error:
            if not main_task or _is_over(main_task[0]):
                raise
            log.warning("a task started by a handler raised %s; the worker continues", type(error).__name__)
            run = functools.partial(runner.get_loop().run_until_complete, main_task[0])


def _is_over(main_task: asyncio.Task[Any]) -> bool:
    """Whether to stop: the main task is ending, or the interrupt came from the keyboard (a running worker handles
    SIGINT itself).
    """
    listens = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return main_task.done() or main_task.cancelling() > 0 or not listens
