"""Heartbeats and duties from a thread of their own: a handler that blocks its loop does not lose its lease."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from shiftwork.core.errors import ShiftworkError
from shiftwork.duties import presence
from shiftwork.duties.runner import run_for_ever
from shiftwork.queue.queue import Queue

log = logging.getLogger("shiftwork.worker")
BLOCKED_AFTER_SEC = 5.0


class Held(Protocol):
    """The runner, as the pulse sees it."""

    runtime_id: str

    def tokens(self) -> list[str]:
        """Claims held now."""

    def stop_work(self, token: str, why: str) -> None:
        """This claim is cancelled or lost: stop its handler."""


class Pulse:
    """Beats for everything a runtime holds, and passes on what must stop."""

    def __init__(self, held: Held, queue: Queue, interval: float, lease_sec: float | None) -> None:
        self._held = held
        self._queue = queue
        self._interval = min(interval, lease_sec / 3) if lease_sec else interval
        self._lease_sec = lease_sec
        self._extended_at = time.monotonic()

    async def beat_for_ever(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(self._interval)

    async def beat(self) -> None:
        """One beat. The lease counts from its sending, on this machine's own clock."""
        sent = time.monotonic()
        tokens = self._held.tokens()
        try:
            answer = await self._queue.beat_runtime(self._held.runtime_id, tokens)
        except ShiftworkError as error:
            log.warning("a heartbeat did not get through: %s", error)
            if self._lease_sec is not None and time.monotonic() - self._extended_at > self._lease_sec:
                for token in tokens:
                    self._held.stop_work(token, "the lease has run out while the queue could not be reached")
            return
        self._extended_at = sent
        for token, reason in answer.cancel.items():
            self._held.stop_work(token, f"cancelled: {reason}")
        for token in answer.lost:
            self._held.stop_work(token, "the lease was lost")


class PulseThread:
    """Runs a pulse, the duties and a look at the main loop beside the handlers."""

    def __init__(self, make: Callable[[Queue], Pulse], url: str, workspace: str, runtime_id: str) -> None:
        self._make = make
        self._url = url
        self._workspace = workspace
        self._runtime_id = runtime_id
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._ready = threading.Event()
        self._ending = threading.Event()
        self._broken: ShiftworkError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="shiftwork-pulse", daemon=True)

    async def __aenter__(self) -> None:
        self._thread.start()
        await asyncio.to_thread(self._ready.wait)
        if self._broken is not None:
            raise self._broken

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, 10)

    def _run(self) -> None:
        """Until the runner ends; a store that is away is waited for, as the runner does."""
        while not self._ending.is_set():
            try:
                asyncio.run(self._work())
            except ShiftworkError as error:
                if not self._ready.is_set():
                    self._broken = error
                    break
                log.warning("no heartbeats for the moment: %s", error)
                self._ending.wait(1.0)
        self._ready.set()

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await Queue.open(self._url, workspace=self._workspace, pool_size=2) as queue:
            await presence.announce(queue, self._runtime_id)
            pulse = self._make(queue)
            await pulse.beat()
            self._ready.set()
            tasks = [
                asyncio.create_task(pulse.beat_for_ever()),
                asyncio.create_task(run_for_ever(queue.engine)),
                asyncio.create_task(self._watch_main_loop()),
            ]
            await self._stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_main_loop(self) -> None:
        """Say which code blocks the handlers' loop, once each time it does."""
        while True:
            answered = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._main.call_soon_threadsafe(loop.call_soon_threadsafe, answered.set)
            try:
                async with asyncio.timeout(BLOCKED_AFTER_SEC):
                    await answered.wait()
            except TimeoutError:
                frame = sys._current_frames().get(self._main_thread)  # noqa: SLF001  # the one way to see another thread's stack
                where = "".join(traceback.format_stack(frame)[-3:]) if frame else "unknown"
                log.warning(
                    "a handler blocks the event loop; use a plain function for blocking work. It is at:\n%s", where
                )
                await answered.wait()
            await asyncio.sleep(1)
