"""Submits results: accepted once, however often sent; stored on disk while the queue is unreachable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
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
from shiftwork.model.text import dollars, duration
from shiftwork.operation.interface import AnyQueue
from shiftwork.worker.error_text import clean, describe
from shiftwork.worker.outbox import Outbox, StoredResult

log = logging.getLogger("shiftwork.worker")
F = TypeVar("F", bound=TaskFailure)
RETRY_SEC = (0.2, 5.0)
"""First and maximum delay between attempts to submit a result while the queue is unreachable."""

KEEP_AFTER_SEC = 1.0
"""A result without an answer after this long is stored on disk, whatever the store answers later."""

DEAD_WORKERS_EVERY_SEC = 1.0
"""How often a worker looks for results of dead processes."""

TURN_SEC = 5.0
"""How long a starting worker waits for another that is submitting leftover results."""

ASKED_SEC = 2.0
"""How long each report to an unreachable server is retried before it is kept for later."""

MAX_ERROR_LENGTH = 60_000
LOST_ACCESS = (StoreError, OperationTimeout, Unauthorized, Forbidden)
"""The queue is unreachable or refuses access: the next worker, perhaps with another token, submits the result."""


class Summary(msgspec.Struct):
    """The summary of a worker's work."""

    completed: int = 0
    failed: int = 0
    validating: int = 0
    """Submitted, and awaiting a verdict."""
    released: int = 0
    parked: int = 0
    cancelled: int = 0
    lost: int = 0
    went_offline: bool = False
    went_idle: bool = False
    """Whether it ended because there was nothing left to do."""
    cost_usd: float = 0.0
    """The cost of the attempts, as far as handlers reported it."""
    took_sec: float = 0.0

    def __str__(self) -> str:
        counts = [f"{getattr(self, name)} {name}" for name in COUNTS if getattr(self, name)]
        paid = f", {dollars(self.cost_usd)}" if self.cost_usd else ""
        return f"{', '.join(counts) or 'no task was done'} in {duration(self.took_sec)}{paid}"

    def count(self, status: str | None, tasks: int = 1) -> None:
        """Count the outcome of submitted results."""
        if status == "completed":
            self.completed += tasks
        elif status == "validating":
            self.validating += tasks
        else:
            self.failed += tasks

    def count_unwanted(self, error: ShiftworkError) -> Literal["cancelled", "lost"]:
        """Count an attempt refused by the queue: its task was cancelled, or claimed by another agent."""
        cancelled = error.facts.get("status") == "cancelled"
        self.cancelled += cancelled
        self.lost += not cancelled
        return "cancelled" if cancelled else "lost"


COUNTS = [field.name for field in msgspec.structs.fields(Summary) if field.type is int]


class ResultDelivery:
    """Delivers finished attempts from the handler to the queue."""

    def __init__(self, queue: AnyQueue, outbox: Outbox, summary: Summary, stopping: asyncio.Event) -> None:
        self._queue = queue
        self._outbox = outbox
        self._summary = summary
        self._stopping = stopping
        self._not_ours: set[str] = set()

    async def left(self, *, of_dead_workers: bool = False) -> list[StoredResult]:
        """Submit results left by earlier runs; returns those that still cannot be submitted.

        With `of_dead_workers`, only those of processes known to be gone. Live processes submit their own.
        """
        async with self._locked(0 if of_dead_workers else TURN_SEC) as ours:
            if of_dead_workers and not ours:
                return []  # another process is doing it
            kept = list(self._outbox.of_dead_workers() if of_dead_workers else self._outbox.left())
            return [each for each in kept if not await self._submit_left(each)]

    @asynccontextmanager
    async def _locked(self, patience: float) -> AsyncIterator[bool]:
        """Take the outbox's lock; after this long, continue without it."""
        until = time.monotonic() + patience
        while True:
            with self._outbox.lock() as ours:
                if ours or time.monotonic() >= until:
                    yield ours
                    return
            await asyncio.sleep(0.05)

    async def _submit_left(self, kept: StoredResult) -> bool:
        """Whether the result is settled and need not be retried."""
        if kept.token in self._not_ours:
            return True
        try:
            outcome = await self._submit_result(kept)
        except NotYourClaim:
            log.info("%s stays in the outbox for a worker with the token that claimed it", kept.token)
            self._not_ours.add(kept.token)
            return True
        except InputError as error:
            log.warning("%s from the outbox was refused: %s", kept.token, error)
        except ShiftworkError:
            return False
        else:
            if outcome is not None:
                log.info("%s was submitted from the outbox", kept.token)
        self._outbox.drop(kept.token)
        return True

    async def submit_for_dead_workers(self) -> None:
        """Submit results left by dead processes of this machine, forever."""
        while True:
            try:
                await self.left(of_dead_workers=True)
            except Exception:  # heartbeats run in parallel and must continue
                log.exception("could not submit the outbox of dead processes")
            await asyncio.sleep(DEAD_WORKERS_EVERY_SEC)

    async def deliver(self, kept: StoredResult) -> str | None:
        """Submit a result; while the queue is unreachable, it is stored on disk and retried. Returns the task's
        outcome.
        """
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
                kept = _refused(kept, InputError(describe(error)))
            else:
                return True, None if outcome is None else outcome.status

    def answered(self, claims: Sequence[Token]) -> None:
        """The queue has these results: remove them from the outbox."""
        if self._outbox.holds_any:
            for claim in claims:
                self._outbox.drop(claim.text)

    def keep(self, kept: StoredResult, why: object) -> None:
        """Store the result in the outbox, once."""
        if not self._outbox.has(kept.token) and self._outbox.keep(kept):
            log.warning("%s is kept in the outbox: %s", kept.token, why)

    def keeps(self, claim: Token) -> bool:
        """Whether the result is in the outbox, for the next worker."""
        return self._outbox.has(claim.text)

    async def _submit_result(self, kept: StoredResult) -> Outcome | None:
        """Send a result once; returns its outcome, or None if it is no longer wanted."""
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
    """Report a failed attempt because the handler's result cannot be stored; a retry may fix it."""
    if kept.result is not None:
        usage = None if error.facts.get("booked") else kept.result.usage
        return StoredResult(kept.token, failure=TaskFailure(reasons.INVALID_OUTPUT, str(error), usage))
    if kept.failure is not None and kept.failure.data is not None:
        log.error("the data of a report of %s was left out: %s", kept.token, error)
        return StoredResult(kept.token, failure=msgspec.structs.replace(kept.failure, data=None))
    log.error("a report of %s was refused: %s", kept.token, error)
    return StoredResult(kept.token, failure=TaskFailure(reasons.CRASH, "the queue refused its worker's report"))


def plain(found: F) -> F:
    """A failure with text that every store can hold; one without a reason is a crash."""
    reason, error = clean(found.reason, MAX_NAME) or reasons.CRASH, clean(found.error, MAX_ERROR_LENGTH)
    return msgspec.structs.replace(found, reason=reason, error=error)
