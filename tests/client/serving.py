"""Servers for tests without an event loop: each runs in a thread of this process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.running import Running, running


@contextmanager
def served(store: str, **options: Any) -> Iterator[Running]:
    """A server in a loop and a thread of its own, in real time and with its maintenance jobs, until the block ends."""
    ready = threading.Event()
    made: list[tuple[Running, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with running(store, **{"test_clock": False, "maintenance": True, **options}) as server:
            end = asyncio.Event()
            made.append((server, asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    ready.wait()
    server, loop, end = made[0]
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
