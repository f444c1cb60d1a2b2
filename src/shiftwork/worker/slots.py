"""Runs handlers in a fixed number of slots. A handler that never waits needs no asyncio task of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from shiftwork.engine.assignment import Assignment
from shiftwork.model.outcome import Token
from shiftwork.operation.first_step import Unfinished
from shiftwork.worker.context import Context
from shiftwork.worker.heartbeat import Ending
from shiftwork.worker.outbox import PendingResult
from shiftwork.worker.prefetch import LATE_SEC, ClaimAhead

TURN_SEC = 0.005
"""How long handlers that never suspend may run in a row before the event loop continues."""


class RunningHandler(msgspec.Struct, eq=False):
    """One claimed task: it waits for a slot, its handler runs, or its result is being sent."""

    assignment: Assignment
    claim: Token
    context: Context
    claimed_at: float = 0.0
    began: float = 0.0
    claimed_ahead: bool = False
    """Whether no slot was free for it."""
    executing: bool = False
    task: asyncio.Task[None] | None = None
    """The asyncio task that runs it, once it has suspended."""
    ending: Ending | None = None
    """Why the queue wants it to stop."""
    given_up: bool = False
    """Whether it failed to end in time when its worker was stopped."""
    is_yielding: bool = False
    """Whether it was interrupted for an urgent task."""
    left_as: str = "released"
    """The outcome of an attempt without a result."""

    @property
    def is_over(self) -> bool:
        """Whether its handler has ended and the result is being sent."""
        return self.began > 0 and not self.executing

    def interrupt(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def __str__(self) -> str:
        return f"{self.assignment.id} ({self.assignment.type})"


Outcome = Callable[[RunningHandler], Coroutine[Any, Any, PendingResult | None]]


class Slots:
    """Running handlers, and claimed tasks that wait for a free slot."""

    def __init__(
        self,
        count: int,
        ahead: ClaimAhead,
        outcome: Outcome,
        ended: Callable[[RunningHandler, PendingResult | None], None],
        late: Callable[[list[RunningHandler]], None],
    ) -> None:
        self._count = count
        self._ahead = ahead
        self._outcome = outcome
        """Runs a handler; returns its outcome, also of a failure."""
        self._ended = ended
        self._late = late
        """Called with tasks claimed ahead that have waited too long."""
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()
        """The context variables of which each handler gets a copy."""
        self._waiting: deque[RunningHandler] = deque()
        self._used = 0
        self._is_filling = self._is_watching = self._closed = False

    def add(self, claimed: list[RunningHandler]) -> None:
        """Run these, now or as soon as a slot is free."""
        now = self._loop.time()
        free = self._count - self._used - len(self._waiting)
        for place, work in enumerate(claimed):
            work.claimed_at = now
            work.claimed_ahead = place >= free
        self._waiting.extend(claimed)
        self._fill()
        if len(claimed) > free and not self._is_watching:
            self._is_watching = True
            self._loop.call_later(LATE_SEC, self._release_overdue)

    def close(self) -> list[RunningHandler]:
        """Start no more tasks; returns those that have not started."""
        self._closed = True
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def drop(self, work: RunningHandler) -> None:
        """Drop a task that waits for a slot, or whose handler ignores its cancellation."""
        if work.executing:
            self._free(work)
            self._fill()
        else:
            self._waiting.remove(work)

    def _free(self, work: RunningHandler) -> None:
        if work.executing:
            work.executing = False
            self._used -= 1

    def _fill(self) -> None:
        if self._waiting and self._used < self._count and not self._is_filling:
            self._is_filling = True
            self._loop.create_task(self._run_waiting())  # kept alive by the future it awaits

    async def _run_waiting(self) -> None:
        """Run handlers in a row as long as none suspends; the first that does keeps this asyncio task."""
        us, time = asyncio.current_task(), self._loop.time
        assert us is not None
        now = time()
        turn_ends = now + TURN_SEC
        ours = True
        try:
            while (work := self._next(now)) is not None:
                running, variables = self._outcome(work), self._variables.copy()
                try:
                    awaited = variables.run(running.send, None)
                except StopIteration as ended:
                    result = ended.value
                else:
                    work.task = us
                    ours = self._is_filling = False  # others are run by another asyncio task
                    self._fill()
                    result = await Unfinished(running, awaited, variables.run)
                now = time()
                self._ahead.ended(now - work.began)
                self._free(work)
                self._ended(work, result)
                if not ours or us.cancelling():
                    break  # state that the handler left in this asyncio task must not affect another
                if now >= turn_ends:
                    await asyncio.sleep(0)
                    now = time()
                    turn_ends = now + TURN_SEC
        finally:
            if ours:
                self._is_filling = False
            self._fill()

    def _next(self, now: float) -> RunningHandler | None:
        late = []
        found = None
        while self._waiting and self._used < self._count and not self._closed:
            work = self._waiting.popleft()
            if work.claimed_ahead and now - work.claimed_at > LATE_SEC:
                late.append(work)
                continue
            work.began, work.executing = now, True
            self._used += 1
            found = work
            break
        if late:
            self._drop_overdue(late)
        return found

    def _release_overdue(self) -> None:
        """Release overdue tasks; the oldest come first."""
        now, late = self._loop.time(), []
        while self._waiting and now - self._waiting[0].claimed_at >= LATE_SEC and self._waiting[0].claimed_ahead:
            late.append(self._waiting.popleft())
        if late:
            self._drop_overdue(late)
        self._is_watching = bool(self._waiting)
        if self._waiting:
            due = max(self._waiting[0].claimed_at + LATE_SEC, now + TURN_SEC)
            self._loop.call_at(due, self._release_overdue)

    def _drop_overdue(self, late: list[RunningHandler]) -> None:
        self._ahead.was_late()
        self._late(late)
