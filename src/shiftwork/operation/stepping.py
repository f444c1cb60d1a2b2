"""Makes the first step of a coroutine without an asyncio task or a timer: many need no second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Ended(NamedTuple, Generic[T]):
    """What a coroutine came to that never waited."""

    value: T


def begin(coroutine: Awaitable[T]) -> Ended[T] | Unfinished[T]:
    """Run it until it waits for something; what is left is to be awaited, or closed."""
    running = cast(Coroutine[Any, Any, T], coroutine)
    try:
        return Unfinished(running, running.send(None))
    except StopIteration as ended:
        return Ended(ended.value)


class Unfinished(Generic[T]):
    """Awaits what the coroutine awaits, from `awaited` on, and is what it comes to.

    `run` calls each step: that of a context keeps its variables to the coroutine.
    """

    def __init__(self, running: Coroutine[Any, Any, T], awaited: Any, run: Callable[..., Any] = _call) -> None:
        self._running = running
        self._awaited = awaited
        self._run = run

    def close(self) -> None:
        """Give it up: no one waits for it."""
        self._running.close()

    def __await__(self) -> Generator[Any, Any, T]:
        running, awaited, run = self._running, self._awaited, self._run
        try:
            while True:
                try:
                    yield awaited
                except GeneratorExit:
                    running.close()
                    raise
                except BaseException as error:  # noqa: BLE001  # a cancellation: it is the coroutine's to answer
                    awaited = run(running.throw, error)
                else:
                    awaited = run(running.send, None)
        except StopIteration as ended:
            result: T = ended.value
            return result
