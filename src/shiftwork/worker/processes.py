"""Keeps several worker processes alive: a dead one is replaced, and what it held is handed back at once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shiftwork.core.errors import ShiftworkError
from shiftwork.queue.queue import Queue
from shiftwork.worker.worker import default_agent_id

if TYPE_CHECKING:
    from shiftwork.worker.worker import Worker

log = logging.getLogger("shiftwork.worker")
CRASH_SEC = 5.0
"""A process that lives shorter than this and fails is in a crash loop."""

LONGEST_BACKOFF_SEC = 30.0


class Fleet:
    """The parent of N worker processes. It does no work itself."""

    def __init__(
        self, target: str, worker: Worker, url: str, processes: int, concurrency: int | None, *, until_idle: bool
    ) -> None:
        self._target = target
        self._worker = worker
        self._url = url
        self._processes = processes
        self._concurrency = concurrency
        self._until_idle = until_idle
        self._stopping = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()
        self.restarts = 0

    async def run(self) -> int:
        """Until stopped, or until every process has found nothing left to do."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError):
                loop.add_signal_handler(number, self._stop)
        base = self._worker.agent_id or default_agent_id()
        async with await Queue.open(self._url, workspace=self._worker.workspace, actor=f"fleet:{base}") as queue:
            codes = await asyncio.gather(
                *(self._keep_alive(queue, f"{base}-{n}") for n in range(1, self._processes + 1))
            )
        return max(codes)

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()

    async def _keep_alive(self, queue: Queue, agent_id: str) -> int:
        backoff = 0.0
        while True:
            began = time.monotonic()
            code = await self._run_child(queue, agent_id)
            if self._stopping.is_set() or code == 0:
                return max(code, 0) if self._stopping.is_set() else code
            self.restarts += 1
            lived = time.monotonic() - began
            backoff = min(LONGEST_BACKOFF_SEC, max(1.0, backoff * 2)) if lived < CRASH_SEC else 0.0
            log.warning(
                "worker %s ended with %s after %.1f s; a new one starts in %.0f s",
                agent_id,
                _name(code),
                lived,
                backoff,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff or 0.01):
                    await self._stopping.wait()

    async def _run_child(self, queue: Queue, agent_id: str) -> int:
        runtime_id = f"{agent_id}-{secrets.token_hex(4)}"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "shiftwork.worker.command", self._target, self._url, agent_id, runtime_id,
            str(self._concurrency or 0), "1" if self._until_idle else "0",
        )  # fmt: skip
        self._children.add(child)
        try:
            code = await child.wait()
        finally:
            self._children.discard(child)
        if code != 0:
            await self._hand_back(queue, runtime_id)
        return code

    async def _hand_back(self, queue: Queue, runtime_id: str) -> None:
        try:
            returned = await queue.runtime_gone(runtime_id)
        except ShiftworkError as error:
            log.warning("what %s held waits for its lease: %s", runtime_id, error)
            return
        if returned:
            log.warning("%s is gone; %d of its tasks were handed back", runtime_id, len(returned))


def _name(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
