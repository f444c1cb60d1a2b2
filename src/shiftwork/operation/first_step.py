"""Runs the first step of a coroutine without an asyncio task or a timer: many never suspend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Ended(NamedTuple, Generic[T]):
    """The result of a coroutine that never suspended."""

    value: T


def begin(coroutine: Awaitable[T]) -> Ended[T] | Unfinished[T]:
    """Run a coroutine until it suspends; an unfinished one must be awaited or closed."""
    running = cast(Coroutine[Any, Any, T], coroutine)
    try:
        return Unfinished(running, running.send(None))
    except StopIteration as ended:
        return Ended(ended.value)


class Unfinished(Generic[T]):
    """Continues a suspended coroutine, beginning with `awaited`, and returns its result.

    `run` makes each step: a context's own `run` keeps the context variables inside the coroutine.
    """

    def __init__(self, running: Coroutine[Any, Any, T], awaited: Any, run: Callable[..., Any] = _call) -> None:
        self._running = running
        self._awaited = awaited
        self._run = run

    def close(self) -> None:
        """Close the coroutine: no one waits for it."""
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
                except BaseException as error:  # noqa: BLE001  # such as a cancellation: the coroutine must handle it
                    awaited = run(running.throw, error)
                else:
                    awaited = run(running.send, None)
        except StopIteration as ended:
            result: T = ended.value
            return result
