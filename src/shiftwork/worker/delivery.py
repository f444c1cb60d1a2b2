"""Hands results in: once accepted, however often sent; kept on disk while the queue cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeVar

import msgspec

from shiftwork.model import reasons
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.errors import (
    ConflictError,
    Forbidden,
    InputError,
    NotFound,
    NotYourClaim,
    OperationTimeout,
    ShiftworkError,
    StoreError,
    Unauthorized,
)
from shiftwork.model.outcome import Outcome, Token
from shiftwork.model.reports import TaskFailure
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker.outbox import Outbox, StoredResult
from shiftwork.worker.task_log import dollars, duration

log = logging.getLogger("shiftwork.worker")
F = TypeVar("F", bound=TaskFailure)
RETRY_SEC = (0.2, 5.0)
"""Between attempts to submit a result while the queue cannot be reached: first and longest."""

KEEP_AFTER_SEC = 1.0
"""A result that is not answered for this long is written down, whatever the store says later."""

DEAD_WORKERS_EVERY_SEC = 1.0
"""How often a worker looks for results of processes that are gone."""

TURN_SEC = 5.0
"""How long who starts waits for another that is submitting what is left."""

ASKED_SEC = 2.0
"""How long each report to an unreachable server is retried before it is kept for later."""

MAX_ERROR_LENGTH = 60_000
LOST_ACCESS = (StoreError, OperationTimeout, Unauthorized, Forbidden)
"""The queue is away, or lets us in no more: anyone who starts next, perhaps with another token, hands the result in."""


class Summary(msgspec.Struct):
    """What a worker has done."""

    completed: int = 0
    failed: int = 0
    validating: int = 0
    """Handed in, and waits for its verdict."""
    released: int = 0
    parked: int = 0
    cancelled: int = 0
    lost: int = 0
    went_offline: bool = False
    went_idle: bool = False
    """It ended because there was nothing left to do."""
    cost_usd: float = 0.0
    """What the attempts have cost, as far as their handlers said."""
    took_sec: float = 0.0

    def __str__(self) -> str:
        counts = [f"{getattr(self, name)} {name}" for name in COUNTS if getattr(self, name)]
        paid = f", {dollars(self.cost_usd)}" if self.cost_usd else ""
        return f"{', '.join(counts) or 'no task was done'} in {duration(self.took_sec)}{paid}"

    def count(self, status: str | None) -> None:
        """A result was submitted, and this became of it."""
        if status == "completed":
            self.completed += 1
        elif status == "validating":
            self.validating += 1
        else:
            self.failed += 1

    def count_unwanted(self, error: ShiftworkError) -> Literal["cancelled", "lost"]:
        """The queue refused a write of an attempt: its task was cancelled, or is in other hands."""
        cancelled = error.facts.get("status") == "cancelled"
        self.cancelled += cancelled
        self.lost += not cancelled
        return "cancelled" if cancelled else "lost"


COUNTS = [field.name for field in msgspec.structs.fields(Summary) if field.type is int]


class ResultDelivery:
    """The way of a finished attempt from the handler to the queue."""

    def __init__(self, queue: AnyQueue, outbox: Outbox, summary: Summary, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._outbox = outbox
        self._summary = summary
        self._stopping = stopping
        self._not_ours: set[str] = set()

    async def left(self, *, of_dead_workers: bool = False) -> list[StoredResult]:
        """Hand in what earlier runs could not; what cannot be submitted now either is returned.

        Of the dead: only what was kept by processes that are known to be gone. The living submit theirs themselves.
        """
        async with self._locked(0 if of_dead_workers else TURN_SEC) as ours:
            if of_dead_workers and not ours:
                return []  # others see to it
            kept = list(self._outbox.of_dead_workers() if of_dead_workers else self._outbox.left())
            return [each for each in kept if not await self._submit_left(each)]

    @asynccontextmanager
    async def _locked(self, patience: float) -> AsyncIterator[bool]:
        """Ours as soon as it can be had; who has waited for this long continues without."""
        until = time.monotonic() + patience
        while True:
            with self._outbox.lock() as ours:
                if ours or time.monotonic() >= until:
                    yield ours
                    return
            await asyncio.sleep(0.05)

    async def _submit_left(self, kept: StoredResult) -> bool:
        """Whether it need not be tried again."""
        if kept.token in self._not_ours:
            return True
        try:
            outcome = await self._submit_result(kept)
        except NotYourClaim:
            log.info("%s is left in the outbox for the worker whose token claimed it", kept.token)
            self._not_ours.add(kept.token)
            return True
        except InputError as error:
            log.warning("%s from the outbox is refused: %s", kept.token, error)
        except ShiftworkError:
            return False
        else:
            if outcome is not None:
                log.info("%s was submitted from the outbox", kept.token)
        self._outbox.drop(kept.token)
        return True

    async def submit_for_dead_workers(self) -> None:
        """Hand in, forever, what processes of this machine leave behind when they die."""
        while True:
            try:
                await self.left(of_dead_workers=True)
            except Exception:  # heartbeats run in parallel and must continue
                log.exception("what dead processes left in the outbox waits")
            await asyncio.sleep(DEAD_WORKERS_EVERY_SEC)

    async def deliver(self, kept: StoredResult) -> str | None:
        """Hand a result in; while the queue is away it is kept on disk and tried again. What became of the task."""
        timer = asyncio.get_running_loop().call_later(KEEP_AFTER_SEC, self.keep, kept, "there is no answer yet")
        try:
            answered, status = await self._try_until_answered(kept)
            if answered:
                self._outbox.drop(kept.token)
            return status
        finally:
            timer.cancel()

    async def _try_until_answered(self, kept: StoredResult) -> tuple[bool, str | None]:
        wait = RETRY_SEC[0]
        while True:
            try:
                outcome = await self._submit_result(kept)
            except InputError as error:
                kept = _refused(kept, error)
            except LOST_ACCESS as error:
                await asyncio.to_thread(self.keep, kept, error)
                if self._stopping.is_set():
                    return False, None  # the next start delivers it
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._stopping.wait()
                wait = min(wait * 2, RETRY_SEC[1])
            except Exception as error:
                if isinstance(error, ShiftworkError) or kept.result is None:
                    raise
                log.exception("cannot submit the result of %s", kept.token)
                kept = _refused(kept, InputError(f"{type(error).__name__}: {_words(error)}"))
            else:
                return True, None if outcome is None else outcome.status

    def answered(self, claim: Token) -> None:
        """The queue has it: nothing need be kept."""
        if self._outbox.holds_any:
            self._outbox.drop(claim.text)

    def keep(self, kept: StoredResult, why: object) -> None:
        """Write it down, once."""
        if not self._outbox.has(kept.token) and self._outbox.keep(kept):
            log.warning("%s is kept in the outbox: %s", kept.token, why)

    def keeps(self, claim: Token) -> bool:
        """Whether its result is written down, for anyone who starts next."""
        return self._outbox.has(claim.text)

    async def _submit_result(self, kept: StoredResult) -> Outcome | None:
        """What it came to; None where it is not wanted any more."""
        try:
            if kept.result is not None:
                outcome = await self._queue.complete(kept.token, **kept.result.fields())
                self._summary.count(outcome.status)
            else:
                failure = plain(kept.failure or TaskFailure())
                outcome = await self._queue.fail(kept.token, **failure.fields())
                self._summary.failed += 1
        except (ConflictError, NotFound) as error:
            self._summary.count_unwanted(error)
            log.info("result rejected: %s", error)
            return None
        return outcome


def _refused(kept: StoredResult, error: InputError) -> StoredResult:
    """What the handler returned cannot be stored: that is a failed attempt, and trying again may fix it."""
    if kept.result is not None:
        usage = None if error.facts.get("booked") else kept.result.usage
        return StoredResult(kept.token, failure=TaskFailure(reasons.INVALID_OUTPUT, str(error), usage))
    if kept.failure is not None and kept.failure.data is not None:
        log.error("the data of a report of %s is left out: %s", kept.token, error)
        return StoredResult(kept.token, failure=msgspec.structs.replace(kept.failure, data=None))
    log.error("a report of %s was refused: %s", kept.token, error)
    return StoredResult(kept.token, failure=TaskFailure(reasons.CRASH, "its worker's report was refused"))


def plain(found: F) -> F:
    """A failure in words that every store can hold; one without a reason is a crash."""
    reason, error = clean(found.reason, MAX_NAME) or reasons.CRASH, clean(found.error, MAX_ERROR_LENGTH)
    return msgspec.structs.replace(found, reason=reason, error=error)


def clean(text: object, limit: int) -> str:
    """Text that every store can hold, also of what cannot even describe itself."""
    plain = text if isinstance(text, str) else "" if text is None else _words(text)
    return plain.replace("\0", "").encode("utf-8", "replace").decode()[:limit]


def _words(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # the user's own __str__
        return type(value).__name__
