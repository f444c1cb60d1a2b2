"""The current queue: that of a handler, or of the block that opened it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar

from shiftwork.model.errors import InputError

Q = TypeVar("Q", bound=AbstractAsyncContextManager[Any])

_queue: ContextVar[Any] = ContextVar("shiftwork_queue", default=None)


@contextmanager
def using(queue: Any) -> Iterator[None]:
    """Make this queue the current one inside the block, including tasks and threads started there."""
    token = _queue.set(queue)
    try:
        yield
    finally:
        with suppress(ValueError):  # the block ends in another context, as in a fixture: there is nothing to undo
            _queue.reset(token)


def queue() -> Any:
    """Return the current queue."""
    found = _queue.get()
    if found is None:
        hint = "Use `async with Queue.open(...)`, or name the queue: `task.on(queue).submit(...)`."
        raise InputError("there is no current queue to submit to", where="queue", hint=hint)
    return found


class Opening(Generic[Q]):
    """A queue about to be opened: `queue = await Queue.open(...)`, or `async with Queue.open(...) as queue:`.

    Entered, it closes the queue at the end of the block.

    Inside the block it is the current queue, which typed tasks are submitted to.
    """

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, Q]]) -> None:
        self._open = open_
        self._opened: Q | None = None
        self._using: AbstractContextManager[None]

    def as_coroutine(self) -> Coroutine[Any, Any, Q]:
        """For `asyncio.create_task`, which takes a coroutine."""
        return self._open()

    def __await__(self) -> Generator[Any, Any, Q]:
        return self._open().__await__()

    async def __aenter__(self) -> Q:
        self._opened = await self._open()
        self._using = using(self._opened)
        self._using.__enter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        self._using.__exit__(kind, error, trace)
        await self._opened.__aexit__(kind, error, trace)
