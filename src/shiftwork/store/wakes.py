"""Wake-ups inside one process: which lanes got work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LocalWakes:
    """Hands each announcement to every subscriber; what piles up is folded, so a slow one costs nothing."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber] = set()

    def announce(self, lanes: frozenset[int]) -> None:
        """An empty set means: some lane, look at all."""
        for subscriber in self._subscribers:
            subscriber.put(lanes)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[frozenset[int]]]:
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        try:
            yield subscriber.stream()
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self) -> None:
        self._lanes: set[int] = set()
        self._all = False
        self._news = asyncio.Event()

    def put(self, lanes: frozenset[int]) -> None:
        self._all = self._all or not lanes
        self._lanes |= lanes
        self._news.set()

    async def stream(self) -> AsyncIterator[frozenset[int]]:
        while True:
            await self._news.wait()
            self._news.clear()
            lanes = frozenset() if self._all else frozenset(self._lanes)
            self._lanes.clear()
            self._all = False
            yield lanes
