"""`shiftwork work`: finds the worker a program declares and runs it, in this process or in several."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from shiftwork import logs, tracing
from shiftwork.core.errors import InputError, ShiftworkError
from shiftwork.worker.processes import OFFLINE, Fleet
from shiftwork.worker.worker import Worker

log = logging.getLogger("shiftwork.worker")
LOG_FORMAT = "SHIFTWORK_LOG_FORMAT"
"""How the processes of a fleet log: text or json."""

T = TypeVar("T")


def load(target: str) -> Worker:
    """The `Worker` behind `module:name`, the current folder being looked at first, or behind a program's target."""
    if target.startswith("{"):
        from shiftwork.worker.agent import worker_of  # noqa: PLC0415  # only where a command is run

        return worker_of(target)
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InputError(
            f"{target!r} does not name a worker", where="target", mend="Write module:worker, e.g. app:worker."
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"there is no module {error.name!r}", where="target", mend="Run this where the module can be imported."
        ) from error
    worker = getattr(module, name, None)
    if not isinstance(worker, Worker):
        found = [n for n, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"It has: {', '.join(found)}." if found else "It declares none: write `worker = Worker()`."
        raise InputError(f"{module_name} has no worker {name!r}", where="target", mend=hint)
    return worker


def run(
    target: str,
    *,
    url: str,
    processes: int = 1,
    concurrency: int | None = None,
    until_idle: bool = False,
    agent_id: str | None = None,
    runtime_id: str | None = None,
) -> int:
    """Run until stopped; the exit code."""
    worker = load(target)
    if concurrency is not None:
        worker.concurrency = concurrency
    if agent_id is not None:
        worker.agent_id = agent_id
    if processes > 1:
        return asyncio.run(Fleet(target, worker, url, processes, concurrency, until_idle=until_idle).run())
    tracing.set_up("shiftwork-worker")
    return run_fast(_run_one(worker, url, until_idle=until_idle, runtime_id=runtime_id))


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a process of ours, on uvloop where it is installed: a call takes half as long.

    Garbage is looked for less often, since a batch of 500 makes thousands of objects that go again with it, and what
    the program itself is made of is left out: to look through it stops everything for 15 ms. The store's thread and the
    loop take turns more often, so that neither waits 5 ms for the other.
    """
    gc.set_threshold(20_000, 20, 50)
    gc.freeze()
    sys.setswitchinterval(0.0005)
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _run_one(worker: Worker, url: str, *, until_idle: bool, runtime_id: str | None) -> int:
    summary = await worker.run(url, until_idle=until_idle, runtime_id=runtime_id)
    log.info("done: %s", summary)
    code = OFFLINE if summary.went_offline and runtime_id is not None else 0
    await _end_deaf_handlers(code)
    return code


async def _end_deaf_handlers(code: int) -> None:
    """A handler that ignores its cancellation must not keep the process from ending."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=1.0))[1]:
        log.warning("a handler does not end; the process ends without it")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


def main(arguments: list[str]) -> int:
    """A child of a fleet: target, url, agent id, runtime id, concurrency (0 for its own), until idle (0 or 1)."""
    target, url, agent_id, runtime_id, concurrency, until_idle = arguments
    logs.set_up(json=os.environ.get(LOG_FORMAT) == "json")
    try:
        return run(
            target,
            url=url,
            concurrency=int(concurrency) or None,
            until_idle=until_idle == "1",
            agent_id=agent_id,
            runtime_id=runtime_id,
        )
    except ShiftworkError as error:
        log.error("%s", error)  # noqa: TRY400  # the message is made for people; a traceback would hide it
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
