"""Sends results in batches: results that arrive while a batch is in flight go with the next.

They are sent in the order in which they came: a circuit breaker counts failures in a row, and a batch whose failures
all come behind its successes would open one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from typing import Any, cast

from shiftwork.model.errors import ConflictError, NotFound, ShiftworkError
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import Completion, Failure
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker.delivery import KEEP_AFTER_SEC, ResultDelivery, Summary, plain
from shiftwork.worker.error_text import in_log
from shiftwork.worker.log_sending import LogSender
from shiftwork.worker.outbox import PendingResult

log = logging.getLogger("shiftwork.worker")
MAX_SIZE = 500
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Sender:
    """One batch under way at a time. Whatever goes wrong with a batch is settled for each result alone."""

    def __init__(
        self,
        queue: AnyQueue,
        delivery: ResultDelivery,
        summary: Summary,
        spawn: Spawn,
        forget: Callable[[Token, str], None],
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
                if not self._logs.is_empty:  # afterwards the claims no longer hold
                    await self._logs.send([pending.claim.text for pending in self._under_way])
                for failed, alike in groupby(self._under_way, lambda pending: pending.failed):
                    await self._send(list(alike), self._fail if failed else self._complete)
        finally:
            self._under_way, self._sending = (), False

    async def _send(
        self, batch: list[PendingResult], hand_in: Callable[[list[PendingResult]], Coroutine[Any, Any, list[Outcome]]]
    ) -> None:
        try:
            answered = list(zip(batch, await hand_in(batch), strict=True))
        except Exception as error:  # whatever it is, no result may be lost over it
            if not isinstance(error, ShiftworkError):
                log.exception("%d results could not be sent together; each is sent alone", len(batch))
            for pending in batch:
                self._spawn(self._send_alone(pending))
            return
        for pending, outcome in answered:
            if outcome.error is None:
                self._count(pending, outcome)
                if pending.once_accepted is not None:
                    self._report_accepted(pending, outcome.status)
                what = named_outcome(outcome.status, failed=pending.failed)
            elif isinstance(outcome.error, ConflictError | NotFound):
                what = self._summary.count_unwanted(outcome.error)
                log.info("result rejected: %s", outcome.error)
            else:
                if outcome.error.facts.get("booked"):
                    pending.report.usage = None
                self._spawn(self._send_alone(pending))
                continue
            pending.answered = True
            self._delivery.answered(pending.claim)
            self._forget(pending.claim, what)

    def _count(self, pending: PendingResult, outcome: Outcome) -> None:
        if pending.failed:
            self._summary.failed += 1
        else:
            self._summary.count(outcome.status)

    def _report_accepted(self, pending: PendingResult, status: str | None) -> None:
        if pending.once_accepted is None or status != "completed":
            return
        try:
            pending.once_accepted()
        except BaseException as error:  # it is the handler's own, and others' results are behind it
            what = "what was to be called once the result of %s was accepted failed"
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
            self._forget(pending.claim, what)

    def _watch(self) -> None:
        """One look a second at all that is under way, instead of a timer for each."""
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
        """Write them down in a thread: a slow disk must hold up neither handlers nor the answers that may come now."""
        try:
            for pending in deliveries:
                if not pending.answered and not self._delivery.keeps(pending.claim):
                    await asyncio.to_thread(self._delivery.keep, pending.kept(), "there is no answer yet")
                if pending.answered:  # while it was written
                    self._delivery.answered(pending.claim)
        finally:
            self._keeping = False


def named_outcome(status: str | None, *, failed: bool) -> str:
    """What came of an attempt, for people: a failed one names what follows."""
    if not failed:
        return status or "completed"
    return "failed" if status in {None, "failed"} else f"failed, {status}"
