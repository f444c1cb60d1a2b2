"""`shiftwork work`: finds the worker that a program declares and runs it, in one or several processes."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shiftwork import logs, tracing
from shiftwork.model.errors import InputError, ShiftworkError
from shiftwork.worker import child_process, run_summary
from shiftwork.worker.delivery import Summary
from shiftwork.worker.worker import Worker
from shiftwork.worker.worker_processes import IDLE, OFFLINE, STOPPED, Fleet

log = logging.getLogger("shiftwork.worker")
LOG_FORMAT = "SHIFTWORK_LOG_FORMAT"
"""How the processes of a fleet log: text or json."""

T = TypeVar("T")


def load(target: str) -> Worker:
    """The `Worker` named by `module:name`, searched in the current folder first, or by a program's target."""
    if target.startswith("{"):
        from shiftwork.worker.command_worker import worker_of  # noqa: PLC0415  # only if a command is run

        return worker_of(target)
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InputError(
            f"{target!r} does not name a worker", where="target", hint="Write module:worker, e.g. app:worker."
        )
    module = _imported(module_name)
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        found = [n for n, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"It has: {', '.join(found)}." if found else "It declares none: write `worker = Worker()`."
        raise InputError(f"{module_name} has no worker {name!r}", where="target", hint=hint)
    return worker


def _imported(name: str) -> ModuleType:
    """Import the module. Any exception is reported as its error, even `SystemExit`: no task has run yet."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = _place_of(error)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            hint = "Run this where the module can be imported."
            raise InputError(f"there is no module {missing!r}", where="target", hint=hint) from error
        if missing is not None:
            what = f"{name} needs {missing}, which is not installed"
            raise InputError(what, where=place, hint="Install it where this runs.") from error
        text = " ".join(_message(error).split())
        what = f"{name} cannot be imported: {type(error).__name__}{': ' if text else ''}{text.rstrip('.')}"
        hint = f"Fix it there; `python -c 'import {name}'` prints the full traceback."
        raise InputError(what, where=place, hint=hint) from error


def _message(error: BaseException) -> str:
    """The message without a syntax error's location or our hint, which are shown separately."""
    if isinstance(error, SyntaxError):
        return error.msg
    return error.what if isinstance(error, ShiftworkError) else str(error)


def _place_of(error: BaseException) -> str:
    """File and line of the innermost frame in the user's code: an error in a library is rarely the library's fault."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    _, *inner = traceback.extract_tb(error.__traceback__)  # the first frame is our own import
    frames = [frame for frame in inner if not frame.filename.startswith("<")]
    own = [frame for frame in frames if _is_own(Path(frame.filename))] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "target"


def _is_own(file: Path) -> bool:
    return file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts


def run(
    target: str,
    *,
    url: str,
    processes: int = 1,
    concurrency: int | None = None,
    until_idle: bool = False,
    max_tasks: int | None = None,
    agent_id: str | None = None,
    runtime_id: str | None = None,
    say: Callable[[str], None] | None = None,
    report: run_summary.Report | None = None,
) -> int:
    """Run until stopped; returns the exit code. `say` gets the reason for a regular end, `report` the summary."""
    worker = load(target)
    worker.must_have_handlers()
    if concurrency is not None:
        worker.concurrency = concurrency
    if agent_id is not None:
        worker.agent_id = agent_id
    if processes > 1:
        with run_summary.gathering(report):
            options: dict[str, Any] = {"until_idle": until_idle, "runtime_id": runtime_id}
            return asyncio.run(Fleet(target, worker, url, processes, concurrency, **options).run())
    tracing.set_up("shiftwork-worker")
    run_worker = worker.run(url, until_idle=until_idle, max_tasks=max_tasks, runtime_id=runtime_id)
    with fast_runner(WORKER_GARBAGE) as runner:
        return run_through_exits(runner, _run_one(run_worker, say, report))


GARBAGE = 2_000
"""Live allocations after which Python collects garbage. Scanning 20,000 objects stops everything for 10 ms, and a
server must answer at any moment."""

WORKER_GARBAGE = 10_000
"""The same for a worker: more than the objects of a batch. These are freed once their results are accepted, so the
collector hardly ever runs."""


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a loop of `fast_runner`."""
    with fast_runner() as runner:
        return runner.run(main)


def fast_runner(garbage_after: int = GARBAGE) -> asyncio.Runner:
    """A loop for our own processes, on uvloop if installed: a call takes half as long.

    Garbage is collected less often, because a batch of 500 creates thousands of objects that are freed with it. The
    program's own objects are excluded. The store's thread and the loop switch more often, so that neither waits 5 ms
    for the other.
    """
    gc.set_threshold(garbage_after, 20, 50)
    gc.freeze()
    sys.setswitchinterval(0.0005)
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _run_one(
    running: Coroutine[Any, Any, Summary], say: Callable[[str], None] | None, report: run_summary.Report | None
) -> int:
    summary = await running
    if report is not None:
        report([summary], 0)
    if say is not None:
        say(_why_it_ended(summary))
    await _end_unresponsive_handlers()
    return 0


def _why_it_ended(summary: Summary) -> str:
    if summary.went_offline:
        return OFFLINE
    return IDLE if summary.went_idle else STOPPED


async def _end_unresponsive_handlers() -> None:
    """End the process even if a handler ignores its cancellation."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=1.0))[1]:
        log.warning("a handler does not end; ending the process anyway")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def main() -> int:
    """Run a process of a fleet."""
    start = child_process.started_with()
    say = child_process.begin(start.pipes)
    logs.set_up(json=os.environ.get(LOG_FORMAT) == "json", quiet=start.quiet)
    report = run_summary.noting()
    try:
        return run(
            start.target,
            url=start.url,
            concurrency=start.concurrency,
            until_idle=start.until_idle,
            agent_id=start.agent_id,
            runtime_id=start.runtime_id,
            say=say,
            report=report,
        )
    except ShiftworkError as error:
        if say is not None and isinstance(error, InputError):
            say(child_process.refusal(error))  # the fleet reports it, once
            return 1
        log.error("%s", error)  # noqa: TRY400  # the message is for people; a traceback would hide it
        return 1


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


if __name__ == "__main__":
    sys.exit(main())
