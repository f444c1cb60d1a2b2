"""Sends results in batches: what ends while the batch before is being answered goes with the next.

They are told in the order in which they came: a circuit breaker counts failures in a row, and a batch whose failures
all come behind its successes would open one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from typing import Any

from shiftwork.client.opening import AnyQueue
from shiftwork.core import reasons
from shiftwork.core.errors import ConflictError, NotFound, ShiftworkError
from shiftwork.queue.face.working import Problem, Report
from shiftwork.queue.fence import Outcome, Token
from shiftwork.worker.calling import in_log
from shiftwork.worker.context import Done
from shiftwork.worker.delivery import KEEP_AFTER_SEC, LONGEST_ERROR, Delivery, Summary, clean
from shiftwork.worker.outbox import Kept

log = logging.getLogger("shiftwork.worker")
LARGEST = 500
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Parcel:
    """A finished attempt on its way to the queue."""

    __slots__ = ("answered", "claim", "done", "failure", "since", "usage")

    def __init__(self, claim: Token, data: Any, usage: dict[str, Any] | None, failure: Kept | None = None) -> None:
        self.claim = claim
        self.done = data if isinstance(data, Done) else Done(data)
        self.usage = usage
        self.failure = failure
        self.since = 0.0
        self.answered = False

    def kept(self) -> Kept:
        """As it is written down and tried again."""
        if self.failure is not None:
            return self.failure
        data, text, _, decision_report, verdict, artifacts = self.done
        # What is no list is refused when it is handed in; here it must not keep the attempt from ending.
        said: dict[str, Any] = {"text": text, "artifacts": list(artifacts) if type(artifacts) is tuple else artifacts}
        said |= {"decision_report": decision_report, "verdict": verdict}
        return Kept(self.claim.text, done=True, data=data, usage=self.usage, **said)

    def report(self) -> Report:
        data, text, _, decision_report, verdict, artifacts = self.done
        return Report(self.claim, data, text, artifacts, decision_report, self.usage, verdict)


class Sender:
    """One batch under way at a time. Whatever goes wrong with a batch is settled for each result alone."""

    def __init__(
        self, queue: AnyQueue, delivery: Delivery, summary: Summary, spawn: Spawn, forget: Callable[[Token], None]
    ) -> None:
        self._queue = queue
        self._delivery = delivery
        self._summary = summary
        self._spawn = spawn
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Parcel] = deque()
        self._under_way: Sequence[Parcel] = ()
        self._sending = self._watching = self._keeping = False

    def send(self, parcel: Parcel) -> None:
        parcel.since = self._loop.time()
        self._waiting.append(parcel)
        if not self._sending:
            self._sending = True
            self._spawn(self._send_all())
        if not self._watching:
            self._watch()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                self._under_way = [self._waiting.popleft() for _ in range(min(LARGEST, len(self._waiting)))]
                for failed, alike in groupby(self._under_way, lambda parcel: parcel.failure is not None):
                    await self._send(list(alike), self._fail if failed else self._complete)
        finally:
            self._under_way, self._sending = (), False

    async def _send(
        self, batch: list[Parcel], hand_in: Callable[[list[Parcel]], Coroutine[Any, Any, list[Outcome]]]
    ) -> None:
        try:
            answered = list(zip(batch, await hand_in(batch), strict=True))
        except Exception as error:  # whatever it is, no result may be lost over it
            if not isinstance(error, ShiftworkError):
                log.exception("%d results could not be sent together; each is sent alone", len(batch))
            for parcel in batch:
                self._spawn(self._send_alone(parcel))
            return
        for parcel, outcome in answered:
            if outcome.error is None:
                self._count(parcel, outcome)
                self._tell_accepted(parcel, outcome.status)
            elif isinstance(outcome.error, ConflictError | NotFound):
                self._summary.count_unwanted(outcome.error)
                log.info("a result was not wanted any more: %s", outcome.error)
            else:
                parcel.usage = None if outcome.error.facts.get("booked") else parcel.usage
                self._spawn(self._send_alone(parcel))
                continue
            parcel.answered = True
            self._delivery.answered(parcel.claim)
            self._forget(parcel.claim)

    def _count(self, parcel: Parcel, outcome: Outcome) -> None:
        if parcel.failure is None:
            self._summary.count(outcome.status)
        else:
            self._summary.failed += 1

    def _tell_accepted(self, parcel: Parcel, status: str | None) -> None:
        if parcel.done.once_accepted is None or status != "completed":
            return
        try:
            parcel.done.once_accepted()
        except BaseException as error:  # it is the handler's own, and others' results are behind it
            what = "what was to be called once the result of %s was accepted failed"
            log.exception(what, parcel.claim.text, exc_info=in_log(error))

    async def _complete(self, batch: list[Parcel]) -> list[Outcome]:
        return await self._queue.complete_many([parcel.report() for parcel in batch])

    async def _fail(self, batch: list[Parcel]) -> list[Outcome]:
        return await self._queue.fail_many([_problem(p.claim, p.failure) for p in batch if p.failure is not None])

    async def _send_alone(self, parcel: Parcel) -> None:
        try:
            self._tell_accepted(parcel, await self._delivery.deliver(parcel.kept()))
            parcel.answered = not self._delivery.keeps(parcel.claim)
        finally:
            self._forget(parcel.claim)

    # -- while there is no answer ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """One look a second at all that is under way, instead of a timer for each."""
        self._watching = True
        self._loop.call_later(KEEP_AFTER_SEC, self._look)

    def _look(self) -> None:
        late = self._loop.time() - KEEP_AFTER_SEC
        parcels = [parcel for parcel in (*self._under_way, *self._waiting) if parcel.since <= late]
        if parcels and not self._keeping:
            self._keeping = True
            self._spawn(self._keep(parcels))
        if self._under_way or self._waiting:
            self._watch()
        else:
            self._watching = False

    async def _keep(self, parcels: Sequence[Parcel]) -> None:
        """Write them down in a thread: a slow disk must hold up neither handlers nor the answers that may come now."""
        try:
            for parcel in parcels:
                if not parcel.answered and not self._delivery.keeps(parcel.claim):
                    await asyncio.to_thread(self._delivery.keep, parcel.kept(), "there is no answer yet")
                if parcel.answered:  # while it was written
                    self._delivery.answered(parcel.claim)
        finally:
            self._keeping = False


def _problem(claim: Token, kept: Kept) -> Problem:
    reason, error = clean(kept.reason, 255) or reasons.CRASH, clean(kept.error, LONGEST_ERROR)
    return Problem(claim, reason, error, kept.usage, kept.data, kept.retry)
