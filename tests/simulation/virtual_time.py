"""An event loop without threads, sockets or real time: what runs next, and when, follows from a seed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from random import Random
from selectors import BaseSelector, SelectorKey
from typing import Any, TypeVar

T = TypeVar("T")
MAX_TURNS = 500_000


class Stuck(Exception):
    """The run makes no progress or does not end."""


class ReadyQueue(deque[Any]):
    """The callbacks that can run now; the seed chooses among them, as a busy machine would."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance

    def popleft(self) -> Any:
        if (count := len(self)) > 1:
            self.rotate(-self._chance.randrange(count))
        return super().popleft()


class NoSockets(BaseSelector):
    """A selector that advances the virtual time instead of waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everyone waits, and nothing is due")
        self.turns += 1
        if self.turns > MAX_TURNS:
            raise Stuck("the run does not end")
        self.now += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return SelectorKey(fileobj, 0, events, data)  # the loop's own wake-up pipe, which no thread uses

    def unregister(self, fileobj: Any) -> SelectorKey:
        return SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> dict[Any, SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> SelectorKey:
        raise KeyError(fileobj)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer. Work for threads runs inline."""

    def __init__(self, chance: Random) -> None:
        self._virtual = NoSockets()
        super().__init__(self._virtual)
        self._ready = ReadyQueue(chance)

    def time(self) -> float:
        return self._virtual.now

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits for a wake-up."""

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # a variadic is not needed here  # noqa: ARG002
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # it belongs to who asked
            future.set_exception(error)
        return future


@contextmanager
def no_real_time(loop: VirtualLoop, wall: Callable[[], float]) -> Iterator[None]:
    """Make all clocks of this process show the virtual time."""
    clocks = time.time, time.monotonic, time.perf_counter
    time.time, time.monotonic, time.perf_counter = wall, loop.time, loop.time
    try:
        yield
    finally:
        time.time, time.monotonic, time.perf_counter = clocks
