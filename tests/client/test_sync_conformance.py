"""The conformance suite through the blocking queue: it answers and refuses like the queue that it wraps."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.client import blocking
from shiftwork.operation.blocking_handles import SyncTaskHandle
from shiftwork.testing import MovedClock
from tests.client.test_conformance import of_suite
from tests.conformance.conftest import *  # noqa: F403  # the same queue under each profile

BLOCKING: Any = blocking
"""With what the stub leaves out, which `SyncQueue.open` puts together: it takes no clock."""

SUITES = ["breakers", "control", "dags", "dead_letters", "effects", "failures", "guards", "inputs", "lifecycle"]
SUITES += ["limits", "questions", "schedules", "spawning", "steps", "submit", "triggers", "validation"]


class Awaited:
    """Lets tests await a blocking queue: each call blocks its own thread."""

    def __init__(self, blocking: Any, source: Any) -> None:
        self._blocking, self._source = blocking, source

    def __getattr__(self, name: str) -> Any:
        found, behind = getattr(self._blocking, name), getattr(self._source, name)
        if isinstance(found, BLOCKING._Blocking):
            return Awaited(found, behind)
        if name in {"as_caller", "in_workspace"}:
            return lambda *given: Awaited(found(*given), behind(*given))
        if name == "now" or not inspect.ismethod(behind):
            return found

        async def call(*given: Any, **named: Any) -> Any:
            answer = await asyncio.to_thread(found, *given, **named)
            return [_plain(each) for each in answer] if isinstance(answer, list) else _plain(answer)

        return call


def _plain(answer: Any) -> Any:
    """A handle's own methods are tested in `test_sync.py`."""
    return answer._handle if isinstance(answer, SyncTaskHandle) else answer  # as its queue made it


@pytest.fixture
async def queue(sqlite_url: str, clock: MovedClock) -> AsyncIterator[Any]:
    """A blocking queue on a database whose clock only the test moves."""
    loop = BLOCKING._Loop()
    source = await asyncio.to_thread(loop.wait, Queue.open(sqlite_url, clock=clock, seed=7).as_coroutine())
    opened = BLOCKING.SyncQueue(loop, source)
    yield Awaited(opened, source)
    await asyncio.to_thread(opened.close)


for suite in SUITES:
    found = of_suite(suite)
    assert not found.keys() & globals().keys()
    globals().update(found)
