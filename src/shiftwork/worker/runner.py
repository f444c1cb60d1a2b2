"""Runs a worker: claims tasks, executes handlers, reports results, and stops without losing any."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from typing import Any, TypeVar

import msgspec

from shiftwork import tracing
from shiftwork.client.client import Client
from shiftwork.engine.assignment import Assignment, ClaimResult, is_simple
from shiftwork.model import reasons
from shiftwork.model.errors import (
    AgentUnavailable,
    EffectInFlight,
    EffectUnknown,
    Forbidden,
    LeaseLost,
    ShiftworkError,
    StoreClosed,
    StoreDamaged,
    Unauthorized,
)
from shiftwork.model.outcome import Token, parse_token
from shiftwork.model.reports import Failure, Instruction
from shiftwork.model.task import Usage
from shiftwork.operation import current
from shiftwork.operation.interface import AnyQueue
from shiftwork.upkeep import upkeep
from shiftwork.worker import lifespan, provider_errors, threads, typed_handlers
from shiftwork.worker.activity_log import TaskLog, log_start
from shiftwork.worker.context import Context, Fail, Release, Suspended
from shiftwork.worker.declaration import Declaration, as_coroutine
from shiftwork.worker.delivery import ResultDelivery, Summary
from shiftwork.worker.error_text import clean, describe, in_line, in_log
from shiftwork.worker.heartbeat import Ending, Heartbeater, HeartbeatThread
from shiftwork.worker.log_sender import LogSender
from shiftwork.worker.outbox import Outbox, PendingResult, open_outbox
from shiftwork.worker.prefetch import ClaimAhead
from shiftwork.worker.recovery import Recovery
from shiftwork.worker.result_sender import Sender
from shiftwork.worker.return_values import done, recorded, tested
from shiftwork.worker.slots import RunningHandler, Slots

log = logging.getLogger("shiftwork.worker")
MAX_CLAIM = 500
CLAIM_WAIT_SEC = 20.0
IDLE_LOOK_SEC = 0.05
DEFAULT_SLOTS = 10
YIELDED = "it yielded to an urgent task"
T = TypeVar("T")


class Runner:
    """One running worker process. It is the runtime of all it holds."""

    def __init__(
        self, worker: Declaration, agent_id: str, runtime_id: str | None, max_tasks: int | None = None
    ) -> None:
        self.agent_id = agent_id
        self.runtime_id = runtime_id or f"{agent_id}-{secrets.token_hex(4)}"
        self.summary = Summary()
        self._is_named = runtime_id is not None
        self._may_claim = MAX_CLAIM if max_tasks is None else max_tasks
        """How many tasks it may still claim, if that is limited."""
        self._is_limited = max_tasks is not None
        self._recovery: Recovery
        self._holds_nothing = False
        """Whether every claimed task is settled, as far as the queue has answered."""
        self._worker = worker
        self._queue: AnyQueue
        self._calls = {type_: as_coroutine(handler) for type_, handler in worker.handlers.items()}
        self._opened: lifespan.Opened = {}
        """The resources opened by the worker's lifespans."""
        self._delivery: ResultDelivery
        self._sender: Sender
        self._logs: LogSender
        self._loop: asyncio.AbstractEventLoop
        self._life: asyncio.Task[Any] | None = None
        """The task whose cancellation stops the runner: a program that ends cancels it and all handlers at once."""
        self._work: dict[Token, RunningHandler] = {}
        """Tasks by claim, until their results are answered; until then, heartbeats keep the lease."""
        self._concurrency = DEFAULT_SLOTS
        """The number of concurrent handlers."""
        self._is_held_to_setting = False
        """Whether the workspace or its profile sets how many tasks an agent holds."""
        self._ahead: ClaimAhead
        self._slots: Slots
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._reports: set[asyncio.Task[Any]] = set()
        self._slow_until = 0.0
        """Until when handlers should slow down, on this machine's own clock."""
        self._task_log: TaskLog | None = None
        """None if its lines would not be logged."""
        self._no_entry: ShiftworkError | None = None
        """Why no more work can be claimed: a server refuses access, or the store is damaged."""

    async def run(self, queue: AnyQueue, url: str | None, *, until_idle: bool) -> Summary:
        """Work until stopped. With `url`, heartbeats get a connection and a thread of their own."""
        self._queue, self._loop = queue.as_caller(f"agent:{self.agent_id}"), asyncio.get_running_loop()
        self._life = asyncio.current_task()
        self._delivery = ResultDelivery(self._queue, self._open_outbox(url), self.summary, self._stopping)
        self._logs = LogSender(self._queue, self._spawn_report)
        self._sender = Sender(self._queue, self._delivery, self.summary, self._spawn_report, self._forget, self._logs)
        self._recovery = Recovery(self._queue, self.runtime_id, self._worker.handlers)
        with current.using(self._queue):
            async with lifespan.entered(self._worker.lifespans, self._stopping, self.stop) as opened:
                if opened is None:
                    return self.summary
                self._opened = opened
                return await self._recoverably(url, until_idle=until_idle)

    async def _recoverably(self, url: str | None, *, until_idle: bool) -> Summary:
        """Work as a process whose end others on this machine can detect."""
        self._task_log = TaskLog() if log.isEnabledFor(logging.INFO) else None
        self._recovery.begin()
        began = time.monotonic()
        try:
            return await self._work_until_stopped(url, until_idle=until_idle)
        finally:
            self._recovery.end(holds_nothing=self._holds_nothing)
            self.summary.took_sec = time.monotonic() - began
            if self._task_log is not None:
                self._task_log.close()
            log.info("stopped: %s", self.summary, extra={"summary": msgspec.structs.asdict(self.summary)})

    async def _work_until_stopped(self, url: str | None, *, until_idle: bool) -> Summary:
        if self._is_named:
            await self._recovery.refuse_live_duplicate()
        await self._register()
        store, slots = url or self._queue.url, self._concurrency
        log_start(store, self._queue.workspace, self.agent_id, self._worker.handlers, slots)
        drifted = await typed_handlers.declare(self._queue, self.agent_id, self._worker.tasks.values())
        await self._submit_startup_results(url)
        async with AsyncExitStack() as stack:
            if drifted:
                again = typed_handlers.declare_again(self._queue, self.agent_id, self._worker.tasks.values())
                stack.callback(asyncio.create_task(again).cancel)
            await self._start_heartbeats(stack, url, until_idle=until_idle)
            try:
                await self._claim_and_work(until_idle=until_idle)
            except BaseException:
                self.stop()
                await asyncio.shield(self._finish(grace=0))
                raise
            await self._finish(grace=self._worker.stop_grace_sec)
        if self._no_entry is not None:
            raise self._no_entry
        return self.summary

    def _open_outbox(self, url: str | None) -> Outbox:
        return open_outbox(self._worker.outbox, url or self._queue.url, self._queue.workspace)

    async def _register(self) -> None:
        worker = self._worker
        self._concurrency = worker.concurrency or await self._slots_by_settings()
        await self._queue.agents.register(
            id=self.agent_id,
            types=sorted(worker.handlers),
            capabilities=worker.capabilities,
            models_available=worker.models,
            provider=worker.provider,
            accounts=worker.accounts,
            max_concurrent_tasks=self._concurrency,
            budget_remaining_usd=await self._budget_left(),
        )

    async def _slots_by_settings(self) -> int:
        """The number of slots of a worker that does not set it: from the profile or the workspace, otherwise our
        default.

        The setting's own default is for agents that claim without a worker and do not say how many tasks they can do.
        """
        found = next(each for each in await self._queue.settings.list() if each.key == "max_concurrent_tasks")
        self._is_held_to_setting = found.source != "default" and found.value is not None
        return int(found.value) if self._is_held_to_setting else DEFAULT_SLOTS

    async def _budget_left(self) -> float | None:
        """A restart does not reset the budget: earlier spending counts, and so does an operator's limit."""
        before = next((agent for agent in await self._queue.agents.list() if agent.id == self.agent_id), None)
        if before is None or self._worker.budget_usd is None:
            return self._worker.budget_usd if before is None else before.budget_remaining_usd
        return max(0.0, self._worker.budget_usd - before.spent_usd - before.granted_usd)

    async def _submit_startup_results(self, url: str | None) -> None:
        """Submit leftover results first: they would be refused once the claims of an earlier run are reclaimed."""
        left = await self._delivery.left()
        for kept in left:
            self._spawn_report(self._delivery.deliver(kept))
        if self._is_named:
            await self._recovery.of_this_runtime()
        if not left and (url is not None or isinstance(self._queue, Client)):
            await self._recovery.of_dead_workers()

    async def _start_heartbeats(self, stack: AsyncExitStack, url: str | None, *, until_idle: bool) -> None:
        settings = await self._settings()
        self._open_slots(settings)
        interval = min(each["heartbeat_interval_sec"] for each in settings)
        limits = [each.get(key) for each in settings for key in ("heartbeat_timeout_sec", "runtime_offline_sec")]
        lease = min((limit for limit in limits if limit is not None), default=None)

        def make(queue: AnyQueue) -> Heartbeater:
            return Heartbeater(self, queue, interval, lease)

        if url is not None and ":memory:" not in url:
            outbox = self._open_outbox(url)  # not on this loop: heartbeats have a thread of their own
            await stack.enter_async_context(HeartbeatThread(make, url, self._queue.workspace, self, outbox))
            return
        own = [make(self._queue).beat_forever()]
        if not until_idle:
            own += [self._delivery.submit_for_dead_workers(), *upkeep(self._queue)]
        for coroutine in own:
            stack.callback(asyncio.create_task(coroutine).cancel)

    def _open_slots(self, settings: list[dict[str, Any]]) -> None:
        """Tasks with at-most-once delivery are not claimed ahead: after a crash, they would count as started."""
        once = any(each["delivery"] == "at_most_once" for each in settings)
        allowed = self._worker.claim_ahead and not once and not self._is_held_to_setting
        self._ahead = ClaimAhead(self._concurrency, allowed=allowed)
        self._slots = Slots(self._concurrency, self._ahead, self._outcome, self._ended, self._release_overdue)

    async def _settings(self) -> list[dict[str, Any]]:
        """The settings of the workspace and of every type we take."""
        found = [await self._queue.settings.list(type_) for type_ in (None, *self._worker.handlers)]
        return [{setting.key: setting.value for setting in each} for each in found]

    async def unless_stopped(self, opening: Coroutine[Any, Any, T]) -> T | None:
        """Await it; None if we are stopped first, which cancels it."""
        begun, stopping = asyncio.ensure_future(opening), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({begun, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not begun.done():
                begun.cancel()
        return None if begun.cancelled() or not begun.done() else begun.result()

    def stop(self) -> None:
        """Claim no more, let running handlers finish, release the rest."""
        self._stopping.set()
        self._room.set()

    def tokens(self) -> list[str]:
        return [claim.text for claim in list(self._work)]

    def stop_work(self, token: str, ending: Ending, why: str) -> None:
        self._loop.call_soon_threadsafe(self._stop_work, token, ending, why)

    def ask_to_yield(self, token: str, why: str) -> None:
        self._loop.call_soon_threadsafe(self._ask_to_yield, token, why)

    def instruct(self, token: str, instructions: Sequence[Instruction]) -> None:
        self._loop.call_soon_threadsafe(self._instruct, token, instructions)

    def slow_down(self, seconds: float) -> None:
        self._slow_until = time.monotonic() + seconds

    def lose_access(self, error: ShiftworkError) -> None:
        self._loop.call_soon_threadsafe(self._lose_access, error)

    def _slow_for(self) -> float:
        return max(0.0, self._slow_until - time.monotonic())

    def _lose_access(self, error: ShiftworkError) -> None:
        """Stop claiming. Running handlers may finish: their results are kept for the next worker."""
        self._no_entry = error
        self.stop()

    def _stop_work(self, token: str, ending: Ending, why: str) -> None:
        work = self._work.get(parse_token(token))
        if work is None or work.is_over or work.ending is not None:
            return  # if it is already being reported, the queue's answer decides
        log.info("stopping %s: %s", work, why)
        work.ending = ending
        self.summary.cancelled += ending == "cancelled"
        self.summary.lost += ending != "cancelled"
        if not work.executing:
            self._slots.drop(work)
            self._settle(work)
            return
        self._interrupt(work)
        self._loop.call_later(self._worker.cancel_grace_sec, self._abandon, work)

    def _instruct(self, token: str, instructions: Sequence[Instruction]) -> None:
        if (work := self._work.get(parse_token(token))) is not None:
            work.context.receive(instructions)

    def _ask_to_yield(self, token: str, why: str) -> None:
        work = self._work.get(parse_token(token))
        if work is None or work.is_over or work.ending is not None or work.context.should_yield:
            return
        log.info("asking %s to yield: %s", work, why)
        if not work.executing:
            self._slots.drop(work)
            self._release_unstarted([work], YIELDED)
            return
        work.context.ask_to_yield()
        if threads.is_async(self._worker.handlers[work.assignment.type]):
            self._loop.call_later(self._worker.cancel_grace_sec, self._interrupt_to_yield, work)

    def _interrupt_to_yield(self, work: RunningHandler) -> None:
        if work.executing and work.ending is None:
            work.is_yielding = True
            work.interrupt()

    def _interrupt(self, work: RunningHandler) -> None:
        work.context.cancel()
        work.interrupt()

    def _abandon(self, work: RunningHandler) -> None:
        """Abandon a handler that ignores its cancellation: it keeps running, but no longer counts."""
        if work.executing:
            log.warning("abandoning the handler of %s, which ignores its cancellation", work)
            self._slots.drop(work)
            self._settle(work)

    async def _claim_and_work(self, *, until_idle: bool) -> None:
        nothing_expected = False
        while not self._stopping.is_set():
            free = self._room_for()
            if free <= 0:
                if self._may_claim <= 0 and not self._work and not self._reports:
                    return
                self._room.clear()
                await self._room.wait()
                continue
            was_idle = not self._work and not self._reports  # before the claim: a report may free more work
            assignments = await self._claim(free, wait=0 if until_idle else CLAIM_WAIT_SEC)
            if assignments and self._is_limited:
                self._may_claim -= len(assignments)
            if assignments:
                nothing_expected = False
                self._begin(assignments)
            await asyncio.sleep(0)  # let handlers start before the next claim
            if until_idle and not assignments:
                if was_idle and assignments is not None:
                    if nothing_expected:
                        self.summary.went_idle = True
                        return
                    # An expected retry may be ready by now: look once more.
                    nothing_expected = not await self._recovery.is_expected()
                    if nothing_expected:
                        continue
                self._room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_LOOK_SEC):
                        await self._room.wait()

    def _room_for(self) -> int:
        """How many tasks to claim. When claiming ahead, wait until at least half of the most can be claimed."""
        most = self._concurrency + self._ahead.most
        free = most - len(self._work)
        if most > self._concurrency and self._work and free < min(MAX_CLAIM, most // 2):
            return 0
        return min(free, self._may_claim, MAX_CLAIM)

    async def _claim(self, free: int, wait: float) -> list[Assignment] | None:
        """Claim, unless we are stopped meanwhile; None if the queue refused or did not answer."""
        types, ahead = sorted(self._worker.handlers), self._ahead.most
        claiming = asyncio.create_task(
            self._queue.claims.request(
                self.agent_id, free, start=True, runtime_id=self.runtime_id, wait=wait, types=types, ahead=ahead
            )
        )
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not claiming.done():
                claiming.cancel()  # the queue releases tasks that this claim may still get
        try:
            return self._accept_claim(await claiming)
        except asyncio.CancelledError:
            return None
        except StoreClosed:
            self.stop()
        except (Unauthorized, Forbidden, StoreDamaged) as error:
            self._lose_access(error)
        except AgentUnavailable as error:
            await self._wait_while_unwanted(error, patient=wait > 0)
        except ShiftworkError as error:
            log.warning("cannot claim: %s", error)
            await self._pause(1.0)
        return None

    def _accept_claim(self, answer: ClaimResult) -> list[Assignment]:
        if answer.slow_down_sec is not None:
            self.slow_down(answer.slow_down_sec)
        return answer.assignments

    async def _wait_while_unwanted(self, error: AgentUnavailable, *, patient: bool) -> None:
        """Wait while the agent is draining, because it may be set active again. Stop if it is offline."""
        if error.facts["status"] == "offline" or not patient:
            log.warning("stopping the worker: %s", error)
            self.summary.went_offline = True
            self.stop()
        else:
            await self._pause(1.0)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _begin(self, assignments: list[Assignment]) -> None:
        queue, slow_for, opened, logs = self._queue, self._slow_for, self._opened, self._logs
        claimed = [
            RunningHandler(each, each.claim, Context(queue, each, slow_for, opened, logs)) for each in assignments
        ]
        self._work.update((work.claim, work) for work in claimed)
        self._slots.add(claimed)

    def _ended(self, work: RunningHandler, pending: PendingResult | None) -> None:
        """Send the outcome of a handler."""
        if work.ending is not None and not (work.ending == "cut_off" and pending is not None and not pending.failed):
            self._settle(work)
        elif pending is None:
            self._forget([work.claim], work.left_as)
        else:
            self._sender.send(pending)
        if self._stopping.is_set():
            self._room.set()  # the wait for the last handlers checks again

    async def _outcome(self, work: RunningHandler) -> PendingResult | None:
        """Run the handler in the trace of its task, with log records that name the task, and return its outcome."""
        held = work.assignment
        tracing.work_on(held)
        try:
            if is_simple(held) and not tracing.in_use():
                return done(work, await self._calls[held.type](work.context))
            with self._span(held), recorded(work, self.agent_id, self._worker.provider):
                return await self._tested(work, await self._calls[held.type](work.context))
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            failure = self._failure(work, error)
            return PendingResult(work.claim, failure, failed=True) if failure is not None else None

    async def _tested(self, work: RunningHandler, data: Any) -> PendingResult:
        """Run the handler, then the task's tests if it has any."""
        if self._worker.run_tests and work.assignment.tests is not None:
            data = await tested(work.context, data)
        return done(work, data)

    def _span(self, held: Assignment) -> AbstractContextManager[None]:
        """The span of an attempt; its attributes are computed only if tracing is on."""
        about: dict[str, Any] = {}
        if tracing.is_on():
            about = {"task_id": held.id, "type": held.type, "fence": held.fence, "agent_id": self.agent_id}
        return tracing.span(f"execute {held.type}", "consumer", held.traceparent, **about)

    def _failure(self, work: RunningHandler, error: BaseException) -> Failure | None:
        try:
            return self._classify(work, error)
        except Exception as unread:  # a user's exception class may lack attributes of ours
            log.exception("%s failed with an unreadable error", work, exc_info=in_log(unread))
            return Failure(reasons.CRASH, describe(error), work.context.usage(), token=work.claim)

    def _classify(self, work: RunningHandler, error: BaseException) -> Failure | None:
        """The outcome of a handler's exception."""
        usage = work.context.usage()
        if isinstance(error, Suspended):
            self.summary.parked += 1
            work.left_as = "waiting"
            return None
        if work.ending is not None:
            return None
        if isinstance(error, LeaseLost):  # noticed by a write of the handler before a heartbeat
            work.ending = "cancelled" if error.facts.get("status") == "cancelled" else "lost"
            self.summary.count_unwanted(error)
            return None
        stopped = work.given_up or (isinstance(error, asyncio.CancelledError) and self._is_ending())
        yielded = work.is_yielding and isinstance(error, asyncio.CancelledError)
        if isinstance(error, Release) or stopped or yielded:
            self.summary.released += 1
            why = "its worker was stopped" if stopped else clean(error, 1000) or "released by its handler"
            why = YIELDED if yielded and not stopped else why
            self._spawn_report(self._release(work, why))
            return None
        if isinstance(error, Fail):
            return Failure(error.reason, error.error, usage, error.data, error.retry, token=work.claim)
        text = describe(error)
        reason, data = provider_errors.classify(error, text, time.time())
        if isinstance(error, EffectInFlight | EffectUnknown):
            reason, data = error.code, None
        if reason == reasons.CRASH:
            log.error("%s failed: %s", work, in_line(text), exc_info=in_log(error))
        else:  # caused from outside, not by a defect of the handler
            log.warning("%s failed with %s: %s", work, reason, in_line(text))
        return Failure(reason, text, usage, data, token=work.claim)

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or (self._life is not None and self._life.cancelling() > 0)

    def _settle(self, work: RunningHandler) -> None:
        """Settle an attempt that the queue wants stopped; its usage is booked anyway."""
        self._forget([work.claim], "cancelled" if work.ending == "cancelled" else "lost")
        if work.ending == "cut_off":
            self._spawn_report(self._release(work, "its lease expired while the queue was unreachable"))
        elif usage := work.context.take_usage():
            self._spawn_report(self._book(work.assignment.token, usage))

    async def _book(self, token: str, usage: Usage) -> None:
        """Book usage under a lost claim: this changes no state, but charges the attempt."""
        with suppress(ShiftworkError):
            await self._queue.fail(token, reasons.CANCELLED, usage=usage)

    async def _release(self, work: RunningHandler, why: str) -> None:
        """Release the task without cost. If this fails, the lease expires, because heartbeats no longer name the
        claim.
        """
        with suppress(ShiftworkError):
            await work.context.book_usage()
            await self._queue.release(work.assignment.token, why)

    def _release_overdue(self, late: list[RunningHandler]) -> None:
        self._release_unstarted(late, "it was claimed ahead, but its worker had no free slot in time")

    def _release_unstarted(self, unstarted: list[RunningHandler], why: str) -> None:
        """Release tasks that no handler has seen, without cost, in one call."""
        self.summary.released += len(unstarted)
        if self._is_limited:
            self._may_claim += len(unstarted)
        claims = [work.claim for work in unstarted]
        self._forget(claims, "released")
        self._spawn_report(self._release_all(claims, why))

    async def _release_all(self, claims: list[Token], why: str) -> None:
        """As with one task: if this fails, the leases expire."""
        with suppress(ShiftworkError):
            await self._queue.batch.release(claims, why)

    def _forget(self, claims: Sequence[Token], outcome: str) -> None:
        """Remove attempts that this worker has finished with."""
        ended = [work for claim in claims if (work := self._work.pop(claim, None)) is not None]
        self._room.set()
        self.summary.cost_usd += sum(work.context.cost_usd for work in ended)
        if self._task_log is not None:
            self._task_log.ended(ended, outcome)

    def _spawn_report(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(coroutine)
        self._reports.add(task)
        task.add_done_callback(self._reported)

    def _reported(self, task: asyncio.Task[Any]) -> None:
        self._reports.discard(task)
        self._room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a report failed: %s", error, exc_info=error)

    async def _finish(self, grace: float) -> None:
        """Let handlers end; tasks that have not started or do not end in time are released without cost."""
        if unstarted := self._slots.close():
            self._release_unstarted(unstarted, "its worker was stopped")
        if running := len(self._executing()):
            log.info("stopping: %d running handlers have %g s to end", running, grace)
        await self._wait_for_handlers(grace)
        for work in self._executing():
            work.given_up = True
            self._interrupt(work)
        await self._wait_for_handlers(self._worker.cancel_grace_sec)
        while self._reports:
            await asyncio.wait(set(self._reports))
        # Nothing is being reported any more. Claims with a result in the outbox are kept: the next start submits it.
        left = [work for work in self._work.values() if not self._delivery.keeps(work.claim)]
        for work in left:
            what = "its handler does not end" if work.executing else "its result was not delivered"
            log.warning("%s is released: %s", work, what)
        with suppress(ShiftworkError):
            if left:
                await self._queue.batch.release([work.assignment.token for work in left], "its worker has stopped")
            self._holds_nothing = len(self._work) == len(left)
            await self._queue.agents.deregister(self.agent_id)
        self.summary.released += len(left)

    def _executing(self) -> list[RunningHandler]:
        return [work for work in self._work.values() if work.executing]

    async def _wait_for_handlers(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._executing():
                    self._room.clear()
                    await self._room.wait()
