"""Fixtures for tests of programs that use the queue; pytest finds them by itself once Shiftwork is installed.

This module is loaded by every run of pytest, so it imports the queue only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shiftwork.queue import Queue
    from shiftwork.testing import MovedClock
    from shiftwork.worker.delivery import Summary
    from shiftwork.worker.worker import Worker


def _async_fixture() -> Callable[[Any], Any]:
    """With pytest-asyncio, a fixture it runs in both of its modes; without it, one that AnyIO's plugin runs."""
    try:
        import pytest_asyncio  # noqa: PLC0415  # loaded by pytest anyway where it is installed
    except ImportError:
        return pytest.fixture
    return pytest_asyncio.fixture


@pytest.fixture
def queue_clock() -> MovedClock:
    """The clock of `queue`: it stands still until `queue_clock.advance(seconds)` or `run_worker` moves it."""
    from shiftwork.testing import MovedClock  # noqa: PLC0415  # not for every run of pytest

    return MovedClock()


@_async_fixture()
async def queue(tmp_path: Path, queue_clock: MovedClock) -> AsyncIterator[Queue]:
    """An empty queue in a SQLite file of the test's own; `queue.url` is its address."""
    from shiftwork.queue import Queue  # noqa: PLC0415  # not for every run of pytest

    async with Queue.open(f"sqlite:///{tmp_path}/shiftwork.db", clock=queue_clock) as opened:
        yield opened


@pytest.fixture
def run_worker(queue: Queue, queue_clock: MovedClock) -> Callable[[Worker], Awaitable[Summary]]:
    """`await run_worker(worker)` lets a worker do all it can on `queue`; the clock is moved to retries and timers."""
    from shiftwork.testing import run_until_idle  # noqa: PLC0415  # not for every run of pytest

    async def run(worker: Worker) -> Summary:
        return await run_until_idle(worker, queue, clock=queue_clock)

    return run
