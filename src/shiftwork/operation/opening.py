"""A queue about to be opened: `queue = await Queue.open(...)`, or `async with Queue.open(...) as queue:`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from shiftwork.operation import current

Q = TypeVar("Q", bound=AbstractAsyncContextManager[Any])


class Opening(Generic[Q]):
    """Opens when it is awaited or entered; entered, it closes the queue at the end of the block.

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
        self._using = current.using(self._opened)
        self._using.__enter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        self._using.__exit__(kind, error, trace)
        await self._opened.__aexit__(kind, error, trace)
