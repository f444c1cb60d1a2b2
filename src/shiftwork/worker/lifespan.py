"""Lifespans: resources that a worker process opens before its first claim and closes after its last result."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Generic, TypeVar

from shiftwork.model.errors import InputError, LifespanFailed
from shiftwork.worker.context import Context
from shiftwork.worker.error_text import describe

log = logging.getLogger("shiftwork.worker")
T = TypeVar("T")
Enter = Callable[[], AsyncIterator[T] | AsyncGenerator[T, None] | AbstractAsyncContextManager[T]]


class Lifespan(Generic[T]):
    """One resource that a process opens; handlers get it through their context."""

    def __init__(self, function: Enter[T]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        _check(function, self.name)
        generator = inspect.isasyncgenfunction(function)
        self._enter: Callable[[], Any] = asynccontextmanager(function) if generator else function  # type: ignore[arg-type]  # known to be a generator

    def __repr__(self) -> str:
        return f"<lifespan {self.name}>"

    def of(self, context: Context) -> T:
        """Return the value it yielded in the process that runs this handler."""
        try:
            value: T = context.opened[self]
        except KeyError:
            raise InputError(
                f"{self.name} is not a lifespan of this worker", where=self.name, hint="Register it on the same worker."
            ) from None
        return value

    def make(self) -> AbstractAsyncContextManager[T]:
        made: AbstractAsyncContextManager[T] = self._enter()
        return made


def _check(function: Any, name: str) -> None:
    hint = "Write `async def name(): ...; yield value`, or use contextlib.asynccontextmanager."
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InputError(f"{name} is not an async generator or a context manager", where=name, hint=hint)
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(f"{name} cannot be a lifespan: {error}", where=name, hint=hint) from None


Opened = dict[Lifespan[Any], Any]


@asynccontextmanager
async def entered(
    lifespans: Sequence[Lifespan[Any]], stopping: asyncio.Event, stop: Callable[[], None]
) -> AsyncIterator[Opened | None]:
    """Open all lifespans; None if the worker was stopped before all were open.

    One task enters and leaves them all, so that each may use task groups and cancel scopes. One that ends by itself
    stops the worker.
    """
    if not lifespans:
        yield {}
        return
    opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()
    life = asyncio.create_task(_live(lifespans, opened, over))
    life.add_done_callback(lambda _: None if over.is_set() else stop())
    stopped = asyncio.create_task(stopping.wait())
    try:
        ends: set[asyncio.Future[Any]] = {opened, stopped, life}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done() and not life.done():
            life.cancel()
            yield None
        else:
            yield await opened
    finally:
        stopped.cancel()
        over.set()
        await asyncio.shield(asyncio.wait({life}))


async def _live(lifespans: Sequence[Lifespan[Any]], opened: asyncio.Future[Opened], over: asyncio.Event) -> None:
    values: Opened = {}
    current = lifespans[0]
    try:
        async with AsyncExitStack() as stack:
            for current in lifespans:
                values[current] = await stack.enter_async_context(current.make())
            opened.set_result(values)
            await over.wait()
    except Exception as error:  # from the user's code, at its start or end
        if opened.done():
            log.exception("a lifespan of the worker could not be closed")
            return
        log.exception("%s could not be opened", current.name)
        failed = LifespanFailed(f"{current.name} could not be opened: {describe(error)}", where=current.name)
        failed.__cause__ = error
        opened.set_exception(failed)
    finally:
        if not opened.done():
            opened.cancel()
