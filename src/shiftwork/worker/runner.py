"""Runs a worker: claims, executes handlers, reports what came of them, and stops without losing anything."""

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
from shiftwork.engine.assignment import Assignment, ClaimResult
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
from shiftwork.worker.ahead import ClaimAhead
from shiftwork.worker.calling import as_coroutine, describe, in_line, in_log
from shiftwork.worker.context import Context, Fail, Release, Suspended
from shiftwork.worker.declaration import Declaration
from shiftwork.worker.delivery import ResultDelivery, Summary, clean
from shiftwork.worker.heartbeat import Ending, Heartbeater, HeartbeatThread
from shiftwork.worker.log_sending import LogSender
from shiftwork.worker.outbox import Outbox, open_outbox
from shiftwork.worker.recovery import Recovery
from shiftwork.worker.returned import done, recorded, tested
from shiftwork.worker.sending import PendingResult, Sender
from shiftwork.worker.slots import RunningHandler, Slots
from shiftwork.worker.task_log import TaskLog, log_start

log = logging.getLogger("shiftwork.worker")
MAX_CLAIM = 500
CLAIM_WAIT_SEC = 20.0
IDLE_LOOK_SEC = 0.05
DEFAULT_SLOTS = 10
MADE_WAY = "it made way for an urgent task"
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
        """How many tasks it may still claim, where that is limited."""
        self._is_limited = max_tasks is not None
        self._recovery: Recovery
        self._holds_nothing = False
        """All that was claimed is settled, as far as the queue has answered."""
        self._worker = worker
        self._queue: AnyQueue
        self._calls = {type_: as_coroutine(handler) for type_, handler in worker.handlers.items()}
        self._opened: lifespan.Opened = {}
        """What the lifespans of the worker have opened."""
        self._delivery: ResultDelivery
        self._sender: Sender
        self._logs: LogSender
        self._loop: asyncio.AbstractEventLoop
        self._life: asyncio.Task[Any] | None = None
        """Whose cancellation is the end of us: a program that ends cancels it and all handlers at once."""
        self._work: dict[Token, RunningHandler] = {}
        """By claim, until its result is answered: this long its lease is kept up."""
        self._concurrency = DEFAULT_SLOTS
        """How many handlers run at once."""
        self._is_held_to_setting = False
        """The workspace or its profile says how many tasks an agent holds."""
        self._ahead: ClaimAhead
        self._slots: Slots
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._reports: set[asyncio.Task[Any]] = set()
        self._slow_until = 0.0
        """Until when handlers are asked to go slow, on this machine's own clock."""
        self._task_log: TaskLog | None = None
        """Nothing where no one reads its lines."""
        self._no_entry: ShiftworkError | None = None
        """Why there is nothing more to be had: a server lets us in no more, or the store is damaged."""

    async def run(self, queue: AnyQueue, url: str | None, *, until_idle: bool) -> Summary:
        """Work until stopped. `url` lets heartbeats have a connection and a thread of their own."""
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
        """Work as a process that others of this machine see the end of."""
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
            await self._recovery.refuse_living()
        await self._register()
        store, slots = url or self._queue.url, self._concurrency
        log_start(store, self._queue.workspace, self.agent_id, self._worker.handlers, slots)
        drifted = await typed_handlers.declare(self._queue, self.agent_id, self._worker.tasks.values())
        await self._submit_startup_results(url)
        async with AsyncExitStack() as stack:
            if drifted:
                again = typed_handlers.declare_again(self._queue, self.agent_id, self._worker.tasks.values())
                stack.callback(asyncio.create_task(again).cancel)
            await self._start_pulse(stack, url, until_idle=until_idle)
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
        """A worker that does not say how many takes as many as the profile or the workspace says, else our default.

        The setting's own default is for agents that claim by themselves and never said how many they can do.
        """
        found = next(each for each in await self._queue.settings.list() if each.key == "max_concurrent_tasks")
        self._is_held_to_setting = found.source != "default" and found.value is not None
        return int(found.value) if self._is_held_to_setting else DEFAULT_SLOTS

    async def _budget_left(self) -> float | None:
        """A restart is not a pay rise: what the agent has spent before counts, and so does an operator's limit."""
        before = next((agent for agent in await self._queue.agents.list() if agent.id == self.agent_id), None)
        if before is None or self._worker.budget_usd is None:
            return self._worker.budget_usd if before is None else before.budget_remaining_usd
        return max(0.0, self._worker.budget_usd - before.spent_usd - before.granted_usd)

    async def _submit_startup_results(self, url: str | None) -> None:
        """Results first: once the claims of an earlier run are taken back, they are refused."""
        left = await self._delivery.left()
        for kept in left:
            self._spawn_report(self._delivery.deliver(kept))
        if self._is_named:
            await self._recovery.of_this_runtime()
        if not left and (url is not None or isinstance(self._queue, Client)):
            await self._recovery.of_dead_workers()

    async def _start_pulse(self, stack: AsyncExitStack, url: str | None, *, until_idle: bool) -> None:
        settings = await self._settings()
        self._open_slots(settings)
        interval = min(each["heartbeat_interval_sec"] for each in settings)
        limits = [each.get(key) for each in settings for key in ("heartbeat_timeout_sec", "runtime_offline_sec")]
        lease = min((limit for limit in limits if limit is not None), default=None)

        def make(queue: AnyQueue) -> Heartbeater:
            return Heartbeater(self, queue, interval, lease)

        if url is not None and ":memory:" not in url:
            outbox = self._open_outbox(url)  # not ours: the pulse has a thread of its own
            await stack.enter_async_context(HeartbeatThread(make, url, self._queue.workspace, self, outbox))
            return
        own = [make(self._queue).beat_forever()]
        if not until_idle:
            own += [self._delivery.submit_for_dead_workers(), *upkeep(self._queue)]
        for coroutine in own:
            stack.callback(asyncio.create_task(coroutine).cancel)

    def _open_slots(self, settings: list[dict[str, Any]]) -> None:
        """What must be delivered once at most is not claimed ahead: after a crash, it would count as begun."""
        once = any(each["delivery"] == "at_most_once" for each in settings)
        allowed = self._worker.claim_ahead and not once and not self._is_held_to_setting
        self._ahead = ClaimAhead(self._concurrency, allowed=allowed)
        self._slots = Slots(self._concurrency, self._ahead, self._outcome, self._ended, self._give_back_late)

    async def _settings(self) -> list[dict[str, Any]]:
        """Of the workspace and of every type we take."""
        found = [await self._queue.settings.list(type_) for type_ in (None, *self._worker.handlers)]
        return [{setting.key: setting.value for setting in each} for each in found]

    async def unless_stopped(self, opening: Coroutine[Any, Any, T]) -> T | None:
        """What it comes to; None where we are stopped first, and it is given up."""
        begun, stopping = asyncio.ensure_future(opening), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({begun, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not begun.done():
                begun.cancel()
        return None if begun.cancelled() or not begun.done() else begun.result()

    def stop(self) -> None:
        """Take no more work, let what runs finish, release the rest."""
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
        """What runs may finish: its results are kept for anyone who starts next."""
        self._no_entry = error
        self.stop()

    def _stop_work(self, token: str, ending: Ending, why: str) -> None:
        work = self._work.get(parse_token(token))
        if work is None or work.is_over or work.ending is not None:
            return  # what is only being reported meets the queue's own answer
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
        log.info("%s is asked to yield: %s", work, why)
        if not work.executing:
            self._slots.drop(work)
            self._give_back([work], MADE_WAY)
            return
        work.context.ask_to_yield()
        if threads.is_async(self._worker.handlers[work.assignment.type]):
            self._loop.call_later(self._worker.cancel_grace_sec, self._make_way, work)

    def _make_way(self, work: RunningHandler) -> None:
        if work.executing and work.ending is None:
            work.makes_way = True
            work.interrupt()

    def _interrupt(self, work: RunningHandler) -> None:
        work.context.cancel()
        work.interrupt()

    def _abandon(self, work: RunningHandler) -> None:
        """A handler that ignores its cancellation keeps running, but no longer counts."""
        if work.executing:
            log.warning("the handler of %s ignores its cancellation and is left to itself", work)
            self._slots.drop(work)
            self._settle(work)

    async def _claim_and_work(self, *, until_idle: bool) -> None:
        nothing_comes = False
        while not self._stopping.is_set():
            free = self._room_for()
            if free <= 0:
                if self._may_claim <= 0 and not self._work and not self._reports:
                    return
                self._room.clear()
                await self._room.wait()
                continue
            was_idle = not self._work and not self._reports  # before the look: a report may free more work
            assignments = await self._claim(free, wait=0 if until_idle else CLAIM_WAIT_SEC)
            if assignments and self._is_limited:
                self._may_claim -= len(assignments)
            if assignments:
                nothing_comes = False
                self._begin(assignments)
            await asyncio.sleep(0)  # handlers begin before more is asked for
            if until_idle and not assignments:
                if was_idle and assignments is not None:
                    if nothing_comes:
                        self.summary.went_idle = True
                        return
                    # What was to come may be ready by now: it is looked for once more.
                    nothing_comes = not await self._recovery.is_expected()
                    if nothing_comes:
                        continue
                self._room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_LOOK_SEC):
                        await self._room.wait()

    def _room_for(self) -> int:
        """How many tasks to ask for. Where they are claimed ahead, few at a time would be a waste: half of all."""
        most = self._concurrency + self._ahead.most
        free = most - len(self._work)
        if most > self._concurrency and self._work and free < min(MAX_CLAIM, most // 2):
            return 0
        return min(free, self._may_claim, MAX_CLAIM)

    async def _claim(self, free: int, wait: float) -> list[Assignment] | None:
        """Claim, unless we are stopped meanwhile; None where the queue would not or could not say."""
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
                claiming.cancel()  # what it may still get is released by the queue
        try:
            return self._taken(await claiming)
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

    def _taken(self, answer: ClaimResult) -> list[Assignment]:
        if answer.slow_down_sec is not None:
            self.slow_down(answer.slow_down_sec)
        return answer.assignments

    async def _wait_while_unwanted(self, error: AgentUnavailable, *, patient: bool) -> None:
        """A draining agent may be set active again; one that is offline has nothing more to do."""
        if error.facts["status"] == "offline" or not patient:
            log.warning("this worker ends: %s", error)
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
        """Send what a handler came to."""
        if work.ending is not None and not (work.ending == "cut_off" and pending is not None and not pending.failed):
            self._settle(work)
        elif pending is None:
            self._forget(work.claim, work.left_as)
        else:
            self._sender.send(pending)
        if self._stopping.is_set():
            self._room.set()  # who waits for the last handlers looks again

    async def _outcome(self, work: RunningHandler) -> PendingResult | None:
        """What the handler came to, done in the trace its task was submitted in; what is logged names the task."""
        held = work.assignment
        tracing.work_on(held)
        try:
            if held.traceparent is None and not tracing.is_on() and tracing.meter() is None:
                data = await self._calls[held.type](work.context)
                return done(work, data) if held.tests is None else await self._tested(work, data)
            with self._span(held), recorded(work, self.agent_id, self._worker.provider):
                return await self._tested(work, await self._calls[held.type](work.context))
        except BaseException as error:  # noqa: BLE001  # a handler may raise anything, SystemExit included
            failure = self._failure(work, error)
            return PendingResult(work.claim, failure, failed=True) if failure is not None else None

    async def _tested(self, work: RunningHandler, data: Any) -> PendingResult:
        """With the verdict of the tests that the task asks for."""
        if self._worker.run_tests and work.assignment.tests is not None:
            data = await tested(work.context, data)
        return done(work, data)

    def _span(self, held: Assignment) -> AbstractContextManager[None]:
        """What it is about is worked out only where spans are made."""
        about: dict[str, Any] = {}
        if tracing.is_on():
            about = {"task_id": held.id, "type": held.type, "fence": held.fence, "agent_id": self.agent_id}
        return tracing.span(f"execute {held.type}", "consumer", held.traceparent, **about)

    def _failure(self, work: RunningHandler, error: BaseException) -> Failure | None:
        try:
            return self._classify(work, error)
        except Exception as unread:  # a class of the user's own may lack what ours have
            log.exception("%s failed with an error that cannot be read", work, exc_info=in_log(unread))
            return Failure(reasons.CRASH, describe(error), work.context.usage(), token=work.claim)

    def _classify(self, work: RunningHandler, error: BaseException) -> Failure | None:
        """What an exception of a handler means for its task."""
        usage = work.context.usage()
        if isinstance(error, Suspended):
            self.summary.parked += 1
            work.left_as = "waiting"
            return None
        if work.ending is not None:
            return None
        if isinstance(error, LeaseLost):  # heard of by a write of the handler before a heartbeat could tell
            work.ending = "cancelled" if error.facts.get("status") == "cancelled" else "lost"
            self.summary.count_unwanted(error)
            return None
        stopped = work.given_up or (isinstance(error, asyncio.CancelledError) and self._is_ending())
        made_way = work.makes_way and isinstance(error, asyncio.CancelledError)
        if isinstance(error, Release) or stopped or made_way:
            self.summary.released += 1
            why = "its worker was stopped" if stopped else clean(error, 1000) or "released by its handler"
            why = MADE_WAY if made_way and not stopped else why
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
        else:  # the world's doing, not a defect of the handler
            log.warning("%s failed with %s: %s", work, reason, in_line(text))
        return Failure(reason, text, usage, data, token=work.claim)

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or (self._life is not None and self._life.cancelling() > 0)

    def _settle(self, work: RunningHandler) -> None:
        """The queue wanted it stopped: what it spent is booked all the same."""
        self._forget(work.claim, "cancelled" if work.ending == "cancelled" else "lost")
        if work.ending == "cut_off":
            self._spawn_report(self._release(work, "its lease ran out while the queue could not be reached"))
        elif usage := work.context.take_usage():
            self._spawn_report(self._book(work.assignment.token, usage))

    async def _book(self, token: str, usage: Usage) -> None:
        """The claim no longer holds, so this changes no state; the attempt gets its bill."""
        with suppress(ShiftworkError):
            await self._queue.fail(token, reasons.CANCELLED, usage=usage)

    async def _release(self, work: RunningHandler, why: str) -> None:
        """Give back without cost. What does not get through is let go by the pulse, since no one names it any more."""
        with suppress(ShiftworkError):
            await work.context.book_usage()
            await self._queue.release(work.assignment.token, why)

    def _give_back_late(self, late: list[RunningHandler]) -> None:
        self._give_back(late, "it was claimed ahead, and its worker had no slot for it in time")

    def _give_back(self, unbegun: list[RunningHandler], why: str) -> None:
        """What no handler has seen is released, without cost, in one call."""
        self.summary.released += len(unbegun)
        if self._is_limited:
            self._may_claim += len(unbegun)
        for work in unbegun:
            self._forget(work.claim, "released")
        self._spawn_report(self._release_all([work.claim for work in unbegun], why))

    async def _release_all(self, claims: list[Token], why: str) -> None:
        """As with one: what does not get through is let go by the pulse."""
        with suppress(ShiftworkError):
            await self._queue.batch.release(claims, why)

    def _forget(self, claim: Token, outcome: str) -> None:
        """Its attempt is over as far as this worker goes."""
        work = self._work.pop(claim, None)
        self._room.set()
        if work is None:
            return
        cost = work.context.cost_usd
        if cost:
            self.summary.cost_usd += cost
        if self._task_log is not None:
            self._task_log.ended(work.assignment.id, work.assignment.type, outcome, work.began, cost)

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
        """Let handlers end; what has not begun or does not end in time is released, without cost."""
        if unbegun := self._slots.close():
            self._give_back(unbegun, "its worker was stopped")
        if running := len(self._executing()):
            log.info("stopping: %d running handlers have %g s to end", running, grace)
        await self._wait_for_handlers(grace)
        for work in self._executing():
            work.given_up = True
            self._interrupt(work)
        await self._wait_for_handlers(self._worker.cancel_grace_sec)
        while self._reports:
            await asyncio.wait(set(self._reports))
        # Nothing is being reported any more. What is in the outbox stays ours, until the next start hands it in.
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
