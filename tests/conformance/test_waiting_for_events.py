"""One query for the end of the log serves all callers that wait for events or log lines."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.engine import event_log
from tests.conformance.steps import take
from tests.worker.steps import until


async def test_one_query_serves_all_readers_that_wait_for_events(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    read = event_log.read
    pages = 0

    async def counted(*given: Any) -> event_log.Part:
        nonlocal pages
        pages += 1
        return await read(*given)

    monkeypatch.setattr(event_log, "read", counted)
    waiters = queue.executor.shared.event_waiters
    waiting = [asyncio.create_task(queue.events("now", wait=20)) for _ in range(20)]
    await until(lambda: waiters.parked == 20)
    assert pages == 20  # one each, and none while nothing happens
    await queue.submit(type="code")
    found = [await each for each in waiting]
    assert [[event.verb for event in page.events] for page in found] == [["submitted"]] * 20
    assert (pages, waiters.parked) == (40, 0)


async def test_wait_for_a_line_of_a_log_ends_with_it(queue: Queue) -> None:
    made = await queue.submit(type="code")
    held = await take(queue)
    waiters = queue.executor.shared.event_waiters
    waiting = asyncio.create_task(queue.tasks.logs(made.id, wait=20))
    await until(lambda: waiters.parked == 1)
    await queue.claims.log(held.token, [{"text": "hello"}])
    assert [line.text for line in (await waiting).lines] == ["hello"]


async def test_wait_ends_when_the_time_is_up_or_the_queue_is_closed(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        assert (await queue.events("now", wait=0.05)).events == []
        waiters = queue.executor.shared.event_waiters
        waiting = asyncio.create_task(waiters.park(2**60, 60))
        await until(lambda: waiters.parked == 1)
    await waiting
