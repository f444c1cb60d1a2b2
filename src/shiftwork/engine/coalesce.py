"""Joins concurrent calls of one process into one transaction. Each caller gets its own answer, after the commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shiftwork.model.errors import ConflictError, InputError, NotFound, OperationTimeout
from shiftwork.store import deadline

I = TypeVar("I")  # noqa: E741  # item
A = TypeVar("A")

MAX_SIZE = 500
BACKLOG = 20_000
MAX_OVERLAPPING = 4
"""The most concurrent flushes, if they may overlap."""
_THE_CALLERS_OWN = (InputError, ConflictError, NotFound)


class _Call(Generic[I, A]):
    """A waiting caller and its deadline."""

    def __init__(self, item: I, deadline: float, answer: asyncio.Future[A]) -> None:
        self.item = item
        self.deadline = deadline
        self.answer = answer


class Coalescer(Generic[I, A]):
    """Flushes immediately when idle, otherwise when the previous flush is done: no timer, no added latency.

    A call may take `longest()` seconds in total, including the wait for its batch. A call that cannot finish in the
    time it has left is dropped before its batch begins, so that it does not fail the others.
    """

    def __init__(
        self,
        run: Callable[[Sequence[I]], Awaitable[Sequence[A]]],
        longest: Callable[[], float],
        overlap_sec: float | None = None,
    ) -> None:
        self._run = run
        self._longest = longest
        self._overlap_sec = overlap_sec
        """After this long, the next flush starts although the previous one, perhaps blocked by a lock, has not ended;
        None waits."""
        self._overlapping: set[asyncio.Task[None]] = set()
        self._calls: deque[_Call[I, A]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._flusher: asyncio.Task[None] | None = None
        self._alone: object | None = None
        """The running single call that others are queued behind."""
        self._overdue = 0
        """Running single calls that others no longer wait for."""
        self._expects_company = True
        """Whether recent calls were concurrent: then the next one yields once, to let others join it."""
        self._took = 0.0
        """How long the last batch took."""

    async def call(self, item: I) -> A:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._longest()
        first = False
        if not self._calls and self._is_idle():
            self._alone = alone = object()
            try:
                if self._expects_company:
                    await asyncio.sleep(0)  # calls made in the same turn of the loop are joined
                if not self._calls:
                    self._expects_company = False
                    return await self._run_one(item, end)
                first = True
            finally:
                if self._alone is alone:
                    self._alone = None
                    if self._calls:
                        self._begin()
        return await self._wait(item, end, first=first)

    def _is_idle(self) -> bool:
        return self._alone is None and (self._flusher is None or self._flusher.done())

    def _begin(self) -> None:
        if self._is_idle():
            self._flusher = asyncio.create_task(self._flush())

    async def _run_one(self, item: I, end: float) -> A:
        """Run a batch of one in its caller's task: this needs no other task, and a cancellation affects no one else."""
        loop = asyncio.get_running_loop()
        began, alone = loop.time(), self._alone
        limit = None if self._overlap_sec is None else loop.call_later(self._overlap_sec, self._stop_waiting_for, alone)
        try:
            with deadline.ends_at(end):
                (answer,) = await self._run([item])
        except OperationTimeout:
            self._took = 2 * (loop.time() - began)
            raise
        finally:
            if limit is not None:
                limit.cancel()
                self._overdue -= self._alone is not alone
        self._took = loop.time() - began
        return answer

    def _stop_waiting_for(self, alone: object) -> None:
        """Stop making queued calls wait for this one, which continues."""
        if self._alone is alone and self._overdue < MAX_OVERLAPPING:
            self._alone = None
            self._overdue += 1
            if self._calls:
                self._begin()

    async def _wait(self, item: I, end: float, *, first: bool) -> A:
        """Queue the call ahead of those that came after it, to be answered in a batch."""
        self._expects_company = True
        loop = asyncio.get_running_loop()
        if len(self._calls) >= BACKLOG:
            await self._wait_for_room(end)
        call = _Call[I, A](item, end, loop.create_future())
        if first:
            self._calls.appendleft(call)
        else:
            self._calls.append(call)
        self._begin()
        limit = loop.call_at(end, self._give_up, call)
        try:
            return await call.answer
        finally:
            limit.cancel()

    async def _wait_for_room(self, end: float) -> None:
        try:
            async with asyncio.timeout_at(end):
                while len(self._calls) >= BACKLOG:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise self._late() from None

    def _give_up(self, call: _Call[I, A]) -> None:
        """Time out the call, unless its batch has begun: that has the same time limit."""
        if call in self._calls:
            self._calls.remove(call)
            _refuse([call], self._late())

    def _late(self) -> OperationTimeout:
        return OperationTimeout(f"the server was busy and did not start this call within {self._longest():g} s")

    async def _flush(self) -> None:
        while self._calls:
            calls = [self._calls.popleft() for _ in range(min(MAX_SIZE, len(self._calls)))]
            self._room.set()
            open_calls = [call for call in calls if not call.answer.done()]
            if self._overlap_sec is None or len(self._overlapping) >= MAX_OVERLAPPING:
                await self._answer(open_calls)
            else:
                await self._answer_for_a_while(open_calls, self._overlap_sec)

    async def _answer_for_a_while(self, calls: list[_Call[I, A]], seconds: float) -> None:
        """Run the batch; after this long, stop waiting for it."""
        answering = asyncio.create_task(self._answer(calls))
        self._overlapping.add(answering)
        answering.add_done_callback(self._overlapping.discard)
        await asyncio.wait({answering}, timeout=seconds)

    async def _answer(self, calls: list[_Call[I, A]]) -> None:
        """Run the batch; if one caller's data fails it, split it in half until the bad item is alone."""
        loop = asyncio.get_running_loop()
        needed = loop.time() + min(self._took, self._longest() / 2)
        _refuse([call for call in calls if call.deadline < needed], self._late())
        calls = [call for call in calls if not call.answer.done()]
        if not calls:
            return
        began = loop.time()
        try:
            with deadline.ends_at(min(call.deadline for call in calls)):
                answers = await self._run([call.item for call in calls])
        except _THE_CALLERS_OWN as error:
            if len(calls) == 1:
                _refuse(calls, error)
                return
            middle = len(calls) // 2
            await self._answer(calls[:middle])
            await self._answer(calls[middle:])
        except OperationTimeout as error:  # nothing was changed: calls with time left are retried
            self._took = 2 * (loop.time() - began)
            _refuse([call for call in calls if call.deadline <= loop.time()] or calls, error)
            self._calls.extendleft(reversed([call for call in calls if not call.answer.done()]))
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to those who wait
            _refuse(calls, error)
        else:
            self._took = loop.time() - began
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)


def _refuse(calls: Sequence[_Call[I, A]], error: BaseException) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
