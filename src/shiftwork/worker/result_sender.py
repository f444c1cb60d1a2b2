"""Sends results in batches: results that arrive while a batch is in flight join the next one.

They are sent in order of arrival: a circuit breaker counts consecutive failures, and a batch with all failures after
its successes would open one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

from shiftwork.model.errors import ConflictError, NotFound, ShiftworkError
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import Completion, Failure
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker.delivery import KEEP_AFTER_SEC, ResultDelivery, Summary, plain
from shiftwork.worker.error_text import in_log
from shiftwork.worker.log_sender import LogSender
from shiftwork.worker.outbox import PendingResult

log = logging.getLogger("shiftwork.worker")
MAX_SIZE = 500
_HAS_FAILED = attrgetter("failed")
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Sender:
    """Sends one batch at a time. If a batch fails, each of its results is sent alone."""

    def __init__(
        self,
        queue: AnyQueue,
        delivery: ResultDelivery,
        summary: Summary,
        spawn: Spawn,
        forget: Callable[[Sequence[Token], str], None],
        logs: LogSender,
    ) -> None:
        self._queue = queue
        self._delivery = delivery
        self._summary = summary
        self._spawn = spawn
        self._forget = forget
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingResult] = deque()
        self._under_way: Sequence[PendingResult] = ()
        self._sending = self._watching = self._keeping = False

    def send(self, pending: PendingResult) -> None:
        pending.since = self._loop.time()
        self._waiting.append(pending)
        if not self._sending:
            self._sending = True
            self._spawn(self._send_all())
        if not self._watching:
            self._watch()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                self._under_way = [self._waiting.popleft() for _ in range(min(MAX_SIZE, len(self._waiting)))]
                if not self._logs.is_empty:  # the claims no longer hold afterwards
                    await self._logs.send([pending.claim.text for pending in self._under_way])
                for failed, alike in groupby(self._under_way, _HAS_FAILED):
                    await self._send(list(alike), failed=failed)
        finally:
            self._under_way, self._sending = (), False

    async def _send(self, batch: list[PendingResult], *, failed: bool) -> None:
        try:
            outcomes = await (self._fail(batch) if failed else self._complete(batch))
            answered = list(zip(batch, outcomes, strict=True))
        except Exception as error:  # whatever the error, no result may be lost
            if not isinstance(error, ShiftworkError):
                log.exception("%d results could not be sent together; sending each alone", len(batch))
            for pending in batch:
                self._spawn(self._send_alone(pending))
            return
        accepted: dict[str | None, list[PendingResult]] = defaultdict(list)
        for pending, outcome in answered:
            if outcome.error is None:
                accepted[outcome.status].append(pending)
            else:
                self._take_back(pending, outcome.error)
        for status, ended in accepted.items():
            self._accept(ended, status, failed=failed)

    def _accept(self, ended: list[PendingResult], status: str | None, *, failed: bool) -> None:
        """The queue has accepted these."""
        if failed:
            self._summary.failed += len(ended)
        else:
            self._summary.count(status, len(ended))
        for pending in ended:
            if pending.once_accepted is not None:
                self._report_accepted(pending, status)
        self._let_go(ended, named_outcome(status, failed=failed))

    def _take_back(self, pending: PendingResult, error: ShiftworkError) -> None:
        """The queue has refused this one: it is no longer wanted, or sent again alone."""
        if isinstance(error, ConflictError | NotFound):
            log.info("result rejected: %s", error)
            self._let_go([pending], self._summary.count_unwanted(error))
            return
        if error.facts.get("booked"):
            pending.report.usage = None
        self._spawn(self._send_alone(pending))

    def _let_go(self, answered: list[PendingResult], what: str) -> None:
        for pending in answered:
            pending.answered = True
        claims = [pending.claim for pending in answered]
        self._delivery.answered(claims)
        self._forget(claims, what)

    def _report_accepted(self, pending: PendingResult, status: str | None) -> None:
        if pending.once_accepted is None or status != "completed":
            return
        try:
            pending.once_accepted()
        except BaseException as error:  # the callback is the user's, and other results are queued
            what = "the callback for the accepted result of %s failed"
            log.exception(what, pending.claim.text, exc_info=in_log(error))

    async def _complete(self, batch: list[PendingResult]) -> list[Outcome]:
        return await self._queue.batch.complete([cast(Completion, pending.report) for pending in batch])

    async def _fail(self, batch: list[PendingResult]) -> list[Outcome]:
        return await self._queue.batch.fail([plain(cast(Failure, pending.report)) for pending in batch])

    async def _send_alone(self, pending: PendingResult) -> None:
        what = "not reported"
        try:
            status = await self._delivery.deliver(pending.kept())
            self._report_accepted(pending, status)
            pending.answered = not self._delivery.keeps(pending.claim)
            if pending.answered:
                what = "rejected" if status is None else named_outcome(status, failed=pending.failed)
        finally:
            self._forget([pending.claim], what)

    def _watch(self) -> None:
        """Check all pending results once a second, instead of a timer for each."""
        self._watching = True
        self._loop.call_later(KEEP_AFTER_SEC, self._poll)

    def _poll(self) -> None:
        late = self._loop.time() - KEEP_AFTER_SEC
        deliveries = [pending for pending in (*self._under_way, *self._waiting) if pending.since <= late]
        if deliveries and not self._keeping:
            self._keeping = True
            self._spawn(self._keep(deliveries))
        if self._under_way or self._waiting:
            self._watch()
        else:
            self._watching = False

    async def _keep(self, deliveries: Sequence[PendingResult]) -> None:
        """Store results in a thread: a slow disk must delay neither handlers nor incoming answers."""
        try:
            for pending in deliveries:
                if not pending.answered and not self._delivery.keeps(pending.claim):
                    await asyncio.to_thread(self._delivery.keep, pending.kept(), "there is no answer yet")
                if pending.answered:  # answered while it was written
                    self._delivery.answered([pending.claim])
        finally:
            self._keeping = False


def named_outcome(status: str | None, *, failed: bool) -> str:
    """The outcome of an attempt, for people: a failed one names what follows."""
    if not failed:
        return status or "completed"
    return "failed" if status in {None, "failed"} else f"failed, {status}"
