"""Joins concurrent calls of one process into one transaction. Each caller gets its own answer, after the commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from shiftwork.core.errors import ConflictError, InputError, NotFound

I = TypeVar("I")  # noqa: E741  # item
A = TypeVar("A")

LARGEST = 500
BACKLOG = 20_000
_THE_CALLERS_OWN = (InputError, ConflictError, NotFound)


class _Call(NamedTuple, Generic[I]):
    item: I
    answer: asyncio.Future[A]  # type: ignore[valid-type]  # a NamedTuple binds one variable only


class Coalescer(Generic[I, A]):
    """Flushes at once when idle, else when the flush before it is done: no timer, no added wait."""

    def __init__(self, run: Callable[[Sequence[I]], Awaitable[Sequence[A]]]) -> None:
        self._run = run
        self._calls: deque[_Call[I]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._flusher: asyncio.Task[None] | None = None

    async def call(self, item: I) -> A:
        while len(self._calls) >= BACKLOG:
            self._room.clear()
            await self._room.wait()
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(item, answer))
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())
        return await answer

    async def _flush(self) -> None:
        while self._calls:
            calls = [self._calls.popleft() for _ in range(min(LARGEST, len(self._calls)))]
            self._room.set()
            await self._answer([call for call in calls if not call.answer.cancelled()])

    async def _answer(self, calls: list[_Call[I]]) -> None:
        """Run the batch; what fails on one caller's data is halved until the bad item stands alone."""
        if not calls:
            return
        try:
            answers = await self._run([call.item for call in calls])
        except _THE_CALLERS_OWN as error:
            if len(calls) == 1:
                _refuse(calls, error)
                return
            middle = len(calls) // 2
            await self._answer(calls[:middle])
            await self._answer(calls[middle:])
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to those who wait
            _refuse(calls, error)
        else:
            for call, answer in zip(calls, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)


def _refuse(calls: list[_Call[I]], error: BaseException) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
