"""Senders: killed during a delivery, many at once, and never blocking other work."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from shiftwork import Queue
from shiftwork.notifications import maintenance as notifications
from shiftwork.notifications.sender import NotificationSender
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter
from tests.server import processes
from tests.sinks.receivers import Receiver
from tests.sinks.steps import add, tell

CREATED = {"alerts": [], "events": ["task.created"]}


@pytest.fixture
def clock() -> MovedClock:
    """The real time, which the servers use."""
    return MovedClock(time.time())


async def test_server_killed_before_recording_sends_again_with_the_same_id(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    receiver.hangs = True
    async with await processes.start(queue.url) as server:
        await dead_letter(queue)
        await receiver.wait_for(1)
        await server.kill()
    receiver.hangs = False
    assert await tell(queue, clock, 30) == 0  # anyone who has it may still be alive
    assert await tell(queue, clock, 60) == 1
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body)
    (sent,) = await queue.deliveries.list()
    assert (sent.id, sent.status, sent.attempts) == (first.id, "sent", 2)


async def test_outcome_of_an_older_attempt_changes_nothing(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    """A sender that was away longer than its lease returns with a failure after another one has delivered."""
    await add(queue, receiver)
    receiver.hangs, receiver.status = True, 500
    await dead_letter(queue)
    await pass_time(queue, clock, 0)
    late = asyncio.create_task(NotificationSender(queue.engine).send_due())
    await receiver.wait_for(1)
    receiver.hangs, receiver.status = False, 200
    await tell(queue, clock, 120)
    receiver.status = 500
    receiver.end.set()
    await late
    (sent,) = await queue.deliveries.list()
    assert (sent.status, sent.attempts, sent.error) == ("sent", 2, None)
    assert (await queue.sinks.get("ops")).status == "active"


async def test_two_servers_send_each_notification_once(postgres_dsn: str, receiver: Receiver) -> None:
    async with Queue.open(postgres_dsn) as queue, AsyncExitStack() as stack:
        await add(queue, receiver, wants=CREATED)
        for _ in range(2):
            await stack.enter_async_context(await processes.start(postgres_dsn))
        for _ in range(10):
            await queue.submit_many([{"type": "code"}] * 10)
        await receiver.wait_for(100)
        await stack.aclose()
        assert len({got.id for got in receiver.got}) == len(receiver.got) == 100
        found = await queue.deliveries.list()
        assert {each.attempts for each in found} == {1}


async def test_concurrent_log_readers_write_each_event_once(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PAGE", 7)
    await add(queue, receiver, wants=CREATED)
    async with Queue.open(queue.url, clock=clock) as other, await Queue.open(queue.url, clock=clock) as third:
        for _ in range(10):
            await asyncio.gather(
                *(each.submit_many([{"type": "code"}] * 5) for each in (queue, other, third)),
                *(notifications.fill(each.engine) for each in (queue, other, third)),
            )
        await notifications.fill(queue.engine)
    written = [each.seq or 0 for each in await queue.deliveries.list(limit=1000)]
    events = (await queue.events()).events
    assert sorted(written) == [event.seq for event in events if "task.created" in event.names]
    assert len(written) == 150


async def test_hanging_receiver_blocks_no_operation(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, wants=CREATED)
    receiver.hangs = True
    await queue.submit(type="code")
    await pass_time(queue, clock, 0)
    courier = asyncio.create_task(NotificationSender(queue.engine).run_forever())
    await receiver.wait_for(1)
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token)
    await queue.sinks.update("ops", wants={"severity": "critical"})
    await queue.sinks.pause("ops")
    assert await queue.sinks.remove("ops")
    receiver.end.set()
    courier.cancel()
    await asyncio.gather(courier, return_exceptions=True)
    await pass_time(queue, clock, 1)
    assert await queue.deliveries.list() == []
