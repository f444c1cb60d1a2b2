"""Wake-ups inside one process: which lanes got work, which tasks ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class LocalWakes(Generic[T]):
    """Passes each announcement to every subscriber; a backlog is merged, so a slow subscriber costs nothing."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber[T]] = set()

    def announce(self, items: frozenset[T]) -> None:
        """An empty set means unknown: check all lanes."""
        for subscriber in self._subscribers:
            subscriber.put(items)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[frozenset[T]]]:
        subscriber: _Subscriber[T] = _Subscriber()
        self._subscribers.add(subscriber)
        try:
            yield subscriber.stream()
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber(Generic[T]):
    def __init__(self) -> None:
        self._items: set[T] = set()
        self._all = False
        self._news = asyncio.Event()

    def put(self, items: frozenset[T]) -> None:
        self._all = self._all or not items
        self._items |= items
        self._news.set()

    async def stream(self) -> AsyncIterator[frozenset[T]]:
        while True:
            await self._news.wait()
            self._news.clear()
            items = frozenset() if self._all else frozenset(self._items)
            self._items.clear()
            self._all = False
            yield items
