"""Heartbeats and maintenance jobs in a thread of their own, so that a handler that blocks its loop keeps its lease."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol

from shiftwork.client.client import Client, is_server
from shiftwork.model.errors import Forbidden, NotFound, NotYourClaim, ShiftworkError, Unauthorized
from shiftwork.model.reports import Instruction
from shiftwork.operation.interface import AnyQueue
from shiftwork.upkeep import opened_here, upkeep
from shiftwork.worker.delivery import ASKED_SEC, ResultDelivery, Summary
from shiftwork.worker.outbox import Outbox

log = logging.getLogger("shiftwork.worker")
MAX_UNRESPONSIVE_SEC = 2.0
"""While a task runs, the queue is asked this often whether it is still wanted."""

BLOCKED_AFTER_SEC = 5.0
LOOK_EVERY_SEC = 1.0

Ending = Literal["cancelled", "lost", "cut_off"]
"""Why a claim must be stopped: it was cancelled, another agent has it, or it is unknown."""


class HeartbeatTarget(Protocol):
    """The runner's interface for the heartbeat thread."""

    agent_id: str
    runtime_id: str

    def tokens(self) -> list[str]:
        """Claims held now."""

    def stop_work(self, token: str, ending: Ending, why: str) -> None:
        """Stop the handler of this claim."""

    def ask_to_yield(self, token: str, why: str) -> None:
        """Ask the handler of this claim to release its task."""

    def instruct(self, token: str, instructions: Sequence[Instruction]) -> None:
        """Pass instructions to the handler of this claim."""

    def slow_down(self, seconds: float) -> None:
        """How long handlers should slow down because an agent hit a rate limit; 0 when that is over."""

    def lose_access(self, error: ShiftworkError) -> None:
        """The server refuses access for good; retries do not help."""


class Heartbeater:
    """Sends heartbeats for everything a runtime holds, and passes on which claims must stop."""

    def __init__(self, held: HeartbeatTarget, queue: AnyQueue, interval: float, lease_sec: float | None) -> None:
        self._held = held
        self._queue = queue
        self._interval = min(interval, lease_sec / 3) if lease_sec else interval
        self._lease_sec = lease_sec
        self._extended_at = time.monotonic()
        self._unknown_since: dict[str, float] = {}

    async def beat_forever(self) -> None:
        while True:
            await asyncio.sleep(min(self._interval, MAX_UNRESPONSIVE_SEC))
            if self._held.tokens() or time.monotonic() - self._extended_at >= self._interval:
                await self.beat()

    async def beat(self) -> None:
        """Send one heartbeat. The lease counts from its sending, on this machine's own clock."""
        sent = time.monotonic()
        tokens = self._held.tokens()
        try:
            answer = await self._queue.runtimes.heartbeat(self._held.runtime_id, tokens)
            with suppress(NotFound):  # not registered yet, so nothing is claimed
                await self._queue.agents.heartbeat(self._held.agent_id)
            await self._let_go(answer.unnamed)
        except ShiftworkError as error:
            log.warning("a heartbeat failed: %s", error)
            if isinstance(error, Unauthorized | Forbidden) and not isinstance(error, NotYourClaim):
                self._held.lose_access(error)
            if self._lease_sec is not None and time.monotonic() - self._extended_at > self._lease_sec:
                for token in tokens:
                    self._held.stop_work(token, "cut_off", "the queue was unreachable until the lease expired")
            return
        self._extended_at = sent
        for token, reason in answer.cancel.items():
            self._held.stop_work(token, "cancelled", f"cancelled: {reason}")
        for token in answer.lost:
            self._held.stop_work(token, "lost", "the lease was lost")
        for token, why in answer.yields.items():
            self._held.ask_to_yield(token, why)
        for token, instructions in answer.instructions.items():
            self._held.instruct(token, instructions)
        self._held.slow_down(answer.slow_down_sec or 0.0)

    async def _let_go(self, unnamed: Sequence[str]) -> None:
        """Release claims whose answer never reached us: our heartbeats would keep them alive without work."""
        now = time.monotonic()
        known = set(self._held.tokens())
        self._unknown_since = {t: self._unknown_since.get(t, now) for t in unnamed if t not in known}
        patience = self._lease_sec or 3 * self._interval
        late = [token for token, since in self._unknown_since.items() if now - since >= patience]
        if late:
            log.warning("releasing %d claims whose answer was lost", len(late))
            await self._queue.batch.release(late, "the answer to its claim was lost")


class HeartbeatThread:
    """Runs heartbeats, maintenance jobs and a check of the main loop in parallel with the handlers."""

    def __init__(
        self, make: Callable[[AnyQueue], Heartbeater], url: str, workspace: str, held: HeartbeatTarget, outbox: Outbox
    ) -> None:
        self._make = make
        self._url = url
        self._workspace = workspace
        self._held = held
        self._outbox = outbox
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._ready = threading.Event()
        self._ending = threading.Event()
        self._broken: Exception | None = None
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
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has already ended
                self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, 10)

    def _run(self) -> None:
        """Open the store and run until the runner ends; waits for an unreachable store, as the runner does."""
        while not self._ending.is_set():
            try:
                asyncio.run(self._work())
            except Exception as error:  # noqa: BLE001  # heartbeats must continue, whatever the error
                if not self._ready.is_set():
                    self._broken = error
                    break
                log.warning("no heartbeats for the moment: %s", error)
                self._ending.wait(1.0)
        self._ready.set()

    async def _work(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await self._open() as queue:
            await self._announce(queue)
            pulse = self._make(queue)
            await pulse.beat()
            self._ready.set()
            if self._ending.is_set():
                return
            await self._until_stopped(self._stop, queue, pulse)

    async def _announce(self, queue: AnyQueue) -> None:
        if (opened := opened_here(queue)) is not None:
            from shiftwork.agents import presence  # noqa: PLC0415  # a worker of a server loads no engine

            held = self._held
            await presence.announce(
                opened.engine, opened.workspace, held.runtime_id, self._outbox.folder, held.agent_id
            )

    async def _open(self) -> AnyQueue:
        if is_server(self._url):
            return await Client.open(self._url, workspace=self._workspace, patience_sec=ASKED_SEC)
        from shiftwork.queue import Queue  # noqa: PLC0415  # a worker of a server loads no engine

        return await Queue.open(self._url, workspace=self._workspace, pool_size=2)

    async def _until_stopped(self, stop: asyncio.Event, queue: AnyQueue, pulse: Heartbeater) -> None:
        stopping = asyncio.create_task(stop.wait())
        tasks = {asyncio.create_task(pulse.beat_forever()), asyncio.create_task(self._watch_main_loop())}
        successor = ResultDelivery(queue.as_caller(f"agent:{self._held.agent_id}"), self._outbox, Summary(), stop)
        tasks |= {asyncio.create_task(each) for each in (successor.submit_for_dead_workers(), *upkeep(queue))}
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
        for task in done & tasks:
            task.result()  # none of them ends by itself

    async def _watch_main_loop(self) -> None:
        """Log which code blocks the handlers' loop, once each time."""
        while True:
            answered = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._main.call_soon_threadsafe(_answer, loop, answered)
            try:
                async with asyncio.timeout(BLOCKED_AFTER_SEC):
                    await answered.wait()
            except TimeoutError:
                frame = sys._current_frames().get(self._main_thread)  # noqa: SLF001  # the only way to see another thread's stack
                where = "".join(traceback.format_stack(frame)[-3:]) if frame else "unknown"
                log.warning(
                    "a handler blocks the event loop; use a plain function for blocking work. It is at:\n%s", where
                )
                await answered.wait()
            await asyncio.sleep(LOOK_EVERY_SEC)


def _answer(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the caller is gone
        loop.call_soon_threadsafe(answered.set)
