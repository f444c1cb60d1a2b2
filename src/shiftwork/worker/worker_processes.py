"""Keeps several worker processes alive: replaces a dead one, and returns its tasks to the queue at once."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shiftwork.client.client import open_queue
from shiftwork.model.errors import ShiftworkError
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker.child_process import MAX_REPORT_BYTES, Start, interrupts_held_back, refused
from shiftwork.worker.delivery import ASKED_SEC, ResultDelivery, Summary
from shiftwork.worker.outbox import open_outbox
from shiftwork.worker.worker import default_agent_id

if TYPE_CHECKING:
    from shiftwork.worker.worker import Worker

log = logging.getLogger("shiftwork.worker")
CRASH_SEC = 5.0
"""A process that ends within this time has crashed at its start; twice in a row is a crash loop."""

MAX_BACKOFF_SEC = 30.0
HAND_BACK_SEC = 1.0
"""How long a replacement waits for the tasks of the one before it to be returned."""

OFFLINE, IDLE, STOPPED = "offline", "idle", "stopped"
"""A process's report of its end, sent through a pipe, because a handler may end it with any exit code. It is not
replaced if its agent was set offline or nothing is left to do; without a report, it has died."""


class Fleet:
    """The parent of N worker processes. It does no work itself."""

    def __init__(
        self,
        target: str,
        worker: Worker,
        url: str,
        processes: int,
        concurrency: int | None,
        *,
        until_idle: bool,
        runtime_id: str | None = None,
    ) -> None:
        self._target = target
        self._worker = worker
        self._url = url
        self._processes = processes
        self._concurrency = concurrency
        self._until_idle = until_idle
        self._runtime_id = runtime_id
        """The prefix of all processes' runtime ids, if given; otherwise each process has an id of its own."""
        self._stopping = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._refused: ShiftworkError | None = None
        """The error of options that can never work."""
        self._life: int
        """The pipe that closes with us, as children see it."""

    async def run(self) -> int:
        """Run until stopped, or until every process has found nothing left to do."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError):
                loop.add_signal_handler(number, self._stop)
        base = self._worker.agent_id or default_agent_id()
        self._life, ours = os.pipe()
        try:
            return await self._keep_all_alive(base)
        finally:
            os.close(self._life)
            os.close(ours)

    async def _keep_all_alive(self, base: str) -> int:
        async with open_queue(
            self._url, workspace=self._worker.workspace, actor=f"fleet:{base}", patience_sec=ASKED_SEC
        ) as queue:
            try:
                codes = await asyncio.gather(
                    *(self._keep_alive(queue, f"{base}-{n}", n) for n in range(1, self._processes + 1))
                )
            finally:
                self._stop()
                await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._refused is not None:
            raise self._refused
        return max(codes)

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()

    async def _keep_alive(self, queue: AnyQueue, agent_id: str, number: int) -> int:
        crashes, has_lived = 0, False
        while True:
            began = time.monotonic()
            code, report = await self._run_child(queue, agent_id, number)
            if self._stopping.is_set() or report in {OFFLINE, IDLE}:
                return 0
            if (error := refused(report)) is not None and self._gives_up(error, has_lived=has_lived):
                return 0
            lived = time.monotonic() - began
            crashes = crashes + 1 if lived < CRASH_SEC else 0
            has_lived = has_lived or crashes == 0
            backoff = _backoff(crashes)
            loop = f"; {crashes} crashes in a row" if crashes > 1 else ""
            log.log(
                logging.ERROR if crashes > 1 else logging.WARNING,
                "worker %s ended with %s after %.1f s%s; restarting in %g s",
                *(agent_id, _name(code), lived, loop, backoff),
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return 0

    def _gives_up(self, error: ShiftworkError, *, has_lived: bool) -> bool:
        """Give up if the options cannot work; retry if they have worked before."""
        if has_lived:
            log.error("%s", error)
            return False
        self._refused = self._refused or error
        self._stop()
        return True

    async def _run_child(self, queue: AnyQueue, agent_id: str, number: int) -> tuple[int, str]:
        """Run a child; returns its exit code and its report."""
        runtime_id = f"{self._runtime_id}-{number}" if self._runtime_id else f"{agent_id}-{secrets.token_hex(4)}"
        ours, its = os.pipe()
        try:
            child = await self._start_child(agent_id, runtime_id, its)
            self._children.add(child)
            try:
                code = await self._end_of(child)
            finally:
                self._children.discard(child)
            report = _read_report(ours)
        finally:
            os.close(ours)
        if not report:
            handing = asyncio.create_task(self._reclaim_gone(queue, runtime_id))
            self._under_way.add(handing)
            handing.add_done_callback(self._under_way.discard)
            await asyncio.wait({handing}, timeout=HAND_BACK_SEC)
        return code, report

    async def _start_child(self, agent_id: str, runtime_id: str, pipe: int) -> asyncio.subprocess.Process:
        start = Start(
            target=self._target,
            url=self._url,
            agent_id=agent_id,
            runtime_id=runtime_id,
            concurrency=self._concurrency,
            until_idle=self._until_idle,
            quiet=not log.isEnabledFor(logging.INFO),
            pipes=(pipe, self._life),
        )
        try:
            with interrupts_held_back():  # it is forked before anything is awaited
                return await asyncio.create_subprocess_exec(
                    *start.command, env=start.environment, pass_fds=(pipe, self._life)
                )
        finally:
            os.close(pipe)

    async def _end_of(self, child: asyncio.subprocess.Process) -> int:
        """Wait for a child's exit code. After a stop request it has its worker's grace period, and is then killed."""
        ending = asyncio.create_task(child.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ending.done():
            with suppress(ProcessLookupError):
                child.terminate()  # again: it may have started while the others were being stopped
            patience = self._worker.stop_grace_sec + self._worker.cancel_grace_sec + 30
            await asyncio.wait({ending}, timeout=patience)
            if not ending.done():
                log.error("process %d does not end; killing it", child.pid)
                with suppress(ProcessLookupError):
                    child.kill()
        return await ending

    async def _reclaim_gone(self, queue: AnyQueue, runtime_id: str) -> None:
        """Submit its finished results first: once its claims are reclaimed, they would be refused."""
        outbox = open_outbox(self._worker.outbox, self._url, queue.workspace)
        try:
            if await ResultDelivery(queue, outbox, Summary(), self._stopping).left():
                log.warning("the claims of %s wait until the outbox is submitted", runtime_id)
                return
            returned = await queue.runtimes.report_gone(runtime_id)
        except ShiftworkError as error:
            log.warning("the claims of %s wait for their lease: %s", runtime_id, error)
            return
        if returned:
            log.warning("%s is gone; %d of its tasks were returned to the queue", runtime_id, len(returned))


def _backoff(crashes: int) -> float:
    """The first crash may be an accident, so its replacement starts at once."""
    return 0.0 if crashes < 2 else float(min(MAX_BACKOFF_SEC, 2 ** (crashes - 2)))


def _read_report(pipe: int) -> str:
    """Read a process's report. Its own children may hold the pipe open, so do not wait for its end."""
    os.set_blocking(pipe, False)
    try:
        report = os.read(pipe, MAX_REPORT_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
    return report if report in {OFFLINE, IDLE, STOPPED} or refused(report) is not None else ""


def _name(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"
