"""A queue for programs without an event loop: every operation blocks until it is answered.

The types of its methods are in `blocking.pyi`, which `make docs` writes from the declarations.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from shiftwork.client.client import open_queue
from shiftwork.model.errors import StoreClosed
from shiftwork.operation.blocking_handles import blocking
from shiftwork.operation.declare import Namespace
from shiftwork.operation.interface import AnyQueue

T = TypeVar("T")
END_SEC = 10.0


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = False
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shiftwork-queue", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Block the calling thread until the coroutine ends. Do not call it from the loop's own thread."""
        with self._lock:  # a call accepted here runs before the loop ends
            if self._closing:
                work.close()
                raise StoreClosed("the queue was closed", hint="Open it again.")
            answer = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(answer)
        try:
            return answer.result()
        except concurrent.futures.CancelledError:
            raise StoreClosed("the queue was closed during the call", hint="Open it again.") from None
        finally:
            answer.cancel()  # if the caller was interrupted
            with self._lock:
                self._waiting.discard(answer)

    def end(self) -> None:
        """Cancel every pending call; later calls are refused."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop)
        self._thread.join(2 * END_SEC)
        with self._lock:
            left = list(self._waiting)
        for answer in left:  # these ignored their cancellation
            answer.cancel()
        if not self._thread.is_alive():
            self._loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.wait([asyncio.gather(*left, return_exceptions=True)], timeout=END_SEC)
    asyncio.get_running_loop().stop()


class _Blocking:
    """Wraps a queue or a namespace: its coroutine methods become blocking calls."""

    def __init__(self, loop: _Loop, source: AnyQueue | Namespace) -> None:
        self._loop = loop
        self._source = source

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._source, name)
        if isinstance(found, Namespace):
            return _Blocking(self._loop, found)
        return self._blocking(found) if inspect.ismethod(found) else found

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **values: Any) -> Any:
            answer = method(*args, **values)
            if isinstance(answer, AsyncIterator):
                return self._items(answer)
            return blocking(self._loop.wait(answer), self._loop.wait) if inspect.iscoroutine(answer) else answer

        return call

    def _items(self, source: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T | None:
            return await anext(source, None)

        while (item := self._loop.wait(following())) is not None:
            yield item


class SyncQueue(_Blocking):
    """A queue whose operations block. Threads may share one; do not call it from inside an event loop."""

    _source: AnyQueue

    @classmethod
    def open(cls, url: str | None = None, **options: Any) -> Self:
        """Open a database, or the server at `http://host:port`; see `open_queue`."""
        loop = _Loop()
        try:
            return cls(loop, loop.wait(open_queue(url, **options).as_coroutine()))
        except BaseException:
            loop.end()
            raise

    def __repr__(self) -> str:
        return f"SyncQueue({self._source.url!r}, workspace={self._source.workspace!r})"

    def in_workspace(self, name: str) -> SyncQueue:
        """Return the same queue in another workspace."""
        return SyncQueue(self._loop, self._source.in_workspace(name))

    def as_caller(self, actor: str, request_id: str | None = None) -> SyncQueue:
        """Return the same queue for another caller."""
        return SyncQueue(self._loop, self._source.as_caller(actor, request_id))

    def close(self) -> None:
        """Close the queue; pending calls raise `StoreClosed`."""
        try:
            self._loop.wait(self._source.close())
        except StoreClosed:
            return
        self._loop.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
