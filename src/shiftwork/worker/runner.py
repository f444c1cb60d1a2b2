"""Runs a worker: claims, executes handlers, reports what came of them, and stops without losing anything."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import signal
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from shiftwork.core import reasons
from shiftwork.core.errors import (
    InputError,
    LeaseLost,
    NotFound,
    OperationTimeout,
    ShiftworkError,
    StoreClosed,
    StoreError,
)
from shiftwork.core.settings import Settings
from shiftwork.queue.claim import Assignment
from shiftwork.queue.queue import Queue
from shiftwork.worker.context import Context, Fail, GiveBack, Parked
from shiftwork.worker.outbox import Kept, Outbox, default_folder
from shiftwork.worker.pulse import Pulse, PulseThread

if TYPE_CHECKING:
    from shiftwork.worker.worker import Handler, Worker

log = logging.getLogger("shiftwork.worker")
LARGEST_CLAIM = 500
CLAIM_WAIT_SEC = 20.0
RETRY_SEC = (0.2, 5.0)
"""Between attempts to hand in a result while the queue cannot be reached: first and longest."""


class Summary(msgspec.Struct):
    """What a worker has done."""

    completed: int = 0
    failed: int = 0
    released: int = 0
    parked: int = 0
    cancelled: int = 0
    lost: int = 0


class _Work:
    """One handler at work."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.task: asyncio.Task[None] | None = None
        self.stopped: str | None = None


class Runner:
    """One running worker process. It is the runtime of all it holds."""

    def __init__(self, worker: Worker, agent_id: str, runtime_id: str | None) -> None:
        self.agent_id = agent_id
        self.runtime_id = runtime_id or f"{agent_id}-{secrets.token_hex(4)}"
        self.summary = Summary()
        self._worker = worker
        self._queue: Queue
        self._outbox: Outbox
        self._loop: asyncio.AbstractEventLoop
        self._work: dict[str, _Work] = {}
        self._executing = 0
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self, queue: Queue, url: str | None, *, until_idle: bool) -> Summary:
        """Work until stopped. `url` lets heartbeats have a connection and a thread of their own."""
        self._queue, self._loop = queue.as_caller(f"agent:{self.agent_id}"), asyncio.get_running_loop()
        folder = self._worker.outbox or default_folder(url, self.agent_id)
        self._outbox = Outbox(folder)
        settings = await self._register()
        async with AsyncExitStack() as stack:
            self._listen_to_signals(stack)
            await self._start_pulse(stack, settings, url)
            await self._deliver_left()
            await self._claim_and_work(until_idle=until_idle)
            await self._finish()
        return self.summary

    async def _register(self) -> Settings:
        worker = self._worker
        await self._queue.register_agent(
            id=self.agent_id,
            types=sorted(worker.handlers),
            capabilities=worker.capabilities,
            models_available=worker.models,
            max_concurrent_tasks=2 * worker.concurrency + LARGEST_CLAIM,
            budget_remaining_usd=worker.budget_usd,
        )
        resolver = await self._queue.engine.book.get(self._queue.engine.store, self._queue.workspace)
        return resolver.settings()

    async def _start_pulse(self, stack: AsyncExitStack, settings: Settings, url: str | None) -> None:
        def make(queue: Queue) -> Pulse:
            return Pulse(self, queue, settings.heartbeat_interval_sec, settings.heartbeat_timeout_sec)

        if url is not None and ":memory:" not in url:
            await stack.enter_async_context(PulseThread(make, url, self._queue.workspace, self.runtime_id))
            return
        beating = asyncio.create_task(make(self._queue).beat_for_ever())
        stack.callback(beating.cancel)

    def _listen_to_signals(self, stack: AsyncExitStack) -> None:
        """Only the main thread may; elsewhere `stop` is called by whoever runs us."""
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError, NotImplementedError, RuntimeError):
                self._loop.add_signal_handler(number, self.stop)
                stack.callback(self._loop.remove_signal_handler, number)

    def stop(self) -> None:
        """Take no more work, let what runs finish, give back the rest."""
        self._stopping.set()
        self._room.set()

    # -- the pulse's view ------------------------------------------------------------------------------------------

    def tokens(self) -> list[str]:
        return list(self._work)

    def stop_work(self, token: str, why: str) -> None:
        self._loop.call_soon_threadsafe(self._stop_work, token, why)

    def _stop_work(self, token: str, why: str) -> None:
        work = self._work.get(token)
        if work is None or work.task is None or work.stopped is not None:
            return
        log.info("stopping %s (%s): %s", work.assignment.id, work.assignment.type, why)
        work.stopped = why
        work.task.cancel()
        self._loop.call_later(self._worker.cancel_grace_sec, self._abandon, token)

    def _abandon(self, token: str) -> None:
        """A handler that ignores its cancellation keeps running, but no longer counts."""
        work = self._work.pop(token, None)
        if work is not None:
            log.warning(
                "the handler of %s (%s) ignores its cancellation and is left to itself",
                work.assignment.id,
                work.assignment.type,
            )
            self._executing -= 1
            self._room.set()

    # -- claiming --------------------------------------------------------------------------------------------------

    async def _claim_and_work(self, *, until_idle: bool) -> None:
        while not self._stopping.is_set():
            free = self._worker.concurrency - self._executing
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            was_idle = not self._work and not self._reports  # before the look: a report may free more work
            assignments = await self._claim(free, wait=0 if until_idle else CLAIM_WAIT_SEC)
            for assignment in assignments:
                self._begin(assignment)
            if until_idle and not assignments:
                if was_idle:
                    return
                self._room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._room.wait()

    async def _claim(self, free: int, wait: float) -> list[Assignment]:
        """Claim, unless we are stopped meanwhile; a store that is away is waited for."""
        wanted = {
            "types": sorted(self._worker.handlers),
            "capabilities": self._worker.capabilities,
            "models": self._worker.models,
        }
        most = min(free, LARGEST_CLAIM)
        claim = self._queue.claim(self.agent_id, most, start=True, runtime_id=self.runtime_id, wait=wait, **wanted)
        claiming = asyncio.create_task(claim)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not claiming.done():
            claiming.cancel()  # what it may still get is given back by the queue
        try:
            return await claiming
        except asyncio.CancelledError:
            return []
        except StoreClosed:
            self.stop()
            return []
        except ShiftworkError as error:
            log.warning("cannot claim: %s", error)
            await self._pause(1.0)
            return []

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # -- working ---------------------------------------------------------------------------------------------------

    def _begin(self, assignment: Assignment) -> None:
        work = _Work(assignment)
        self._work[assignment.token] = work
        self._executing += 1
        work.task = asyncio.create_task(self._execute(work))

    async def _execute(self, work: _Work) -> None:
        """Run the handler and turn whatever it does into a report."""
        context = Context(self._queue, work.assignment)
        kept: Kept | None
        try:
            data = await self._call(self._worker.handlers[work.assignment.type], context)
            kept = Kept(work.assignment.token, done=True, data=data, usage=context.usage())
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            kept = self._judge(work, error, context)
        if self._work.get(work.assignment.token) is work:
            self._executing -= 1
            self._room.set()
        if work.stopped is not None:
            self._forget(work)
            self.summary.cancelled += 1
        elif kept is None:
            self._forget(work)
        else:
            self._report(work, kept)

    async def _call(self, handler: Handler, context: Context) -> Any:
        if inspect.iscoroutinefunction(handler):
            return await handler(context)
        result = await asyncio.to_thread(handler, context)
        return await result if inspect.isawaitable(result) else result

    def _judge(self, work: _Work, error: BaseException, context: Context) -> Kept | None:
        """What an exception of a handler means for its task."""
        token, usage = work.assignment.token, context.usage()
        if isinstance(error, Parked):
            self.summary.parked += 1
            return None
        if isinstance(error, LeaseLost):
            self.summary.lost += 1
            return None
        if isinstance(error, GiveBack) or (isinstance(error, asyncio.CancelledError) and self._stopping.is_set()):
            self._give_back(work, context, str(error) or "given back by its worker")
            return None
        if isinstance(error, Fail):
            return Kept(token, done=False, reason=error.reason, error=error.error, retry=error.retry, usage=usage)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        log.info("%s (%s) failed: %s", work.assignment.id, work.assignment.type, text, exc_info=error)
        return Kept(token, done=False, reason=reasons.CRASH, error=text, usage=usage)

    def _give_back(self, work: _Work, context: Context, why: str) -> None:
        self.summary.released += 1
        self._spawn_report(self._book_and_release(work.assignment.token, context, why))

    async def _book_and_release(self, token: str, context: Context, why: str) -> None:
        with suppress(ShiftworkError):
            await context.book_usage()
        await self._release(token, why)

    async def _release(self, token: str, why: str) -> None:
        with suppress(ShiftworkError):
            await self._queue.release(token, why)

    def _forget(self, work: _Work) -> None:
        self._work.pop(work.assignment.token, None)

    # -- reporting -------------------------------------------------------------------------------------------------

    def _report(self, work: _Work, kept: Kept) -> None:
        self._spawn_report(self._report_and_forget(work, kept))

    def _spawn_report(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report_and_forget(self, work: _Work, kept: Kept) -> None:
        try:
            await self._deliver(kept)
        finally:
            self._forget(work)  # until then its lease is kept up
            self._room.set()

    async def _deliver(self, kept: Kept) -> None:
        """Hand a result in; while the queue is away it is kept on disk and tried again."""
        wait = RETRY_SEC[0]
        saved = False
        while True:
            try:
                await self._hand_in(kept)
            except (StoreError, OperationTimeout) as error:
                if not saved:
                    self._outbox.keep(kept)
                    saved = True
                    log.warning("%s is kept in the outbox: %s", kept.token, error)
                if self._stopping.is_set():
                    return  # the next start delivers it
                await self._pause(wait)
                wait = min(wait * 2, RETRY_SEC[1])
            else:
                if saved:
                    self._outbox.drop(kept.token)
                return

    async def _hand_in(self, kept: Kept) -> None:
        try:
            if kept.done:
                await self._complete(kept)
            else:
                await self._fail(kept)
        except (LeaseLost, NotFound) as error:
            self.summary.lost += 1
            log.info("a result was not wanted any more: %s", error)

    async def _complete(self, kept: Kept) -> None:
        try:
            outcome = await self._queue.complete(kept.token, kept.data, usage=kept.usage)
        except InputError as error:
            # What the handler returned cannot be stored: that is a failed attempt, and trying again may mend it.
            await self._fail(
                Kept(kept.token, done=False, reason=reasons.INVALID_OUTPUT, error=str(error), usage=kept.usage)
            )
            return
        self.summary.completed += outcome.status == "completed"
        self.summary.failed += outcome.status != "completed"

    async def _fail(self, kept: Kept) -> None:
        error = (kept.error or "").replace("\0", "").encode("utf-8", "replace").decode()[:60_000]
        await self._queue.fail(kept.token, kept.reason, error, usage=kept.usage, retry=kept.retry)
        self.summary.failed += 1

    async def _deliver_left(self) -> None:
        """What an earlier run finished but could not hand in."""
        for kept in list(self._outbox.left()):
            with suppress(StoreError, OperationTimeout):
                await self._hand_in(kept)
                self._outbox.drop(kept.token)

    # -- stopping --------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Let handlers end; what does not end in time is cancelled and given back, without cost."""
        running = [work.task for work in self._work.values() if work.task is not None]
        if running:
            await asyncio.wait(running, timeout=self._worker.stop_grace_sec)
        late = [work for work in self._work.values() if work.task is not None and not work.task.done()]
        for work in late:
            assert work.task is not None
            work.task.cancel()
        if late:
            await asyncio.wait([work.task for work in late if work.task], timeout=self._worker.cancel_grace_sec)
        while self._reports:
            await asyncio.wait(set(self._reports))
        for work in list(self._work.values()):  # handlers that ignored it
            await self._release(work.assignment.token, "its worker has stopped")
        with suppress(ShiftworkError):
            await self._queue.set_agent_status(self.agent_id, "offline")
