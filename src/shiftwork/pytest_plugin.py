"""Fixtures for tests of programs that use the queue; pytest loads them once Shiftwork is installed.

Every run of pytest loads this module, so it imports the queue only when a fixture is used.
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
    """Return the decorator for async fixtures: pytest-asyncio's, which works in both of its modes, or AnyIO's."""
    try:
        import pytest_asyncio  # noqa: PLC0415  # already loaded by pytest if installed
    except ImportError:
        return pytest.fixture
    return pytest_asyncio.fixture


@pytest.fixture
def queue_clock() -> MovedClock:
    """The clock of `queue`. Only `queue_clock.advance(seconds)` and `run_worker` move it."""
    from shiftwork.testing import MovedClock  # noqa: PLC0415  # not needed in every run of pytest

    return MovedClock()


@_async_fixture()
async def queue(tmp_path: Path, queue_clock: MovedClock) -> AsyncIterator[Queue]:
    """An empty queue in a temporary SQLite file; `queue.url` is its address."""
    from shiftwork.queue import Queue  # noqa: PLC0415  # not needed in every run of pytest

    async with Queue.open(f"sqlite:///{tmp_path}/shiftwork.db", clock=queue_clock) as opened:
        yield opened


@pytest.fixture
def run_worker(queue: Queue, queue_clock: MovedClock) -> Callable[[Worker], Awaitable[Summary]]:
    """`await run_worker(worker)` runs a worker on `queue` until it is idle; the clock moves to retries and timers."""
    from shiftwork.testing import run_until_idle  # noqa: PLC0415  # not needed in every run of pytest

    async def run(worker: Worker) -> Summary:
        return await run_until_idle(worker, queue, clock=queue_clock)

    return run
