"""Who sends: killed in the middle, many at once, and never in anybody's way."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from shiftwork import Queue
from shiftwork.duties import notifications
from shiftwork.sinks.courier import Courier
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import bury
from tests.server import processes
from tests.sinks.receivers import Receiver
from tests.sinks.steps import add, tell

CREATED = {"alerts": [], "events": ["task.created"]}


@pytest.fixture
def clock() -> MovedClock:
    """The real time, which the servers have."""
    return MovedClock(time.time())


async def test_a_server_killed_between_sending_and_recording_sends_again_with_the_same_id(
    queue: Queue, clock: MovedClock, receiver: Receiver
) -> None:
    await add(queue, receiver)
    receiver.hangs = True
    async with await processes.start(queue.url) as server:
        await bury(queue)
        await receiver.wait_for(1)
        await server.kill()
    receiver.hangs = False
    assert await tell(queue, clock, 30) == 0  # whoever has it may still be alive
    assert await tell(queue, clock, 60) == 1
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body)
    (sent,) = await queue.deliveries()
    assert (sent.id, sent.status, sent.attempts) == (first.id, "sent", 2)


async def test_the_end_of_an_older_attempt_changes_nothing(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    """A sender that was away longer than its lease comes back with bad news after another one has delivered."""
    await add(queue, receiver)
    receiver.hangs, receiver.status = True, 500
    await bury(queue)
    await pass_time(queue, clock, 0)
    late = asyncio.create_task(Courier(queue.engine).send_due())
    await receiver.wait_for(1)
    receiver.hangs, receiver.status = False, 200
    await tell(queue, clock, 120)
    receiver.status = 500
    receiver.end.set()
    await late
    (sent,) = await queue.deliveries()
    assert (sent.status, sent.attempts, sent.error) == ("sent", 2, None)
    assert (await queue.sink("ops")).status == "active"


async def test_two_servers_on_one_database_send_each_notification_once(postgres_dsn: str, receiver: Receiver) -> None:
    async with await Queue.open(postgres_dsn) as queue, AsyncExitStack() as stack:
        await add(queue, receiver, wants=CREATED)
        for _ in range(2):
            await stack.enter_async_context(await processes.start(postgres_dsn))
        for _ in range(10):
            await queue.submit_many([{"type": "code"}] * 10)
        await receiver.wait_for(100)
        await stack.aclose()
        assert len({got.id for got in receiver.got}) == len(receiver.got) == 100
        found = await queue.deliveries()
        assert {each.attempts for each in found} == {1}


async def test_whoever_reads_the_log_meanwhile_each_event_is_written_once(
    queue: Queue, clock: MovedClock, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PAGE", 7)
    await add(queue, receiver, wants=CREATED)
    async with await Queue.open(queue.url, clock=clock) as other, await Queue.open(queue.url, clock=clock) as third:
        for _ in range(10):
            await asyncio.gather(
                *(each.submit_many([{"type": "code"}] * 5) for each in (queue, other, third)),
                *(notifications.fill(each.engine) for each in (queue, other, third)),
            )
        await notifications.fill(queue.engine)
    written = [each.seq or 0 for each in await queue.deliveries(limit=1000)]
    events, _ = await queue.events()
    assert sorted(written) == [event.seq for event in events if "task.created" in event.names]
    assert len(written) == 150


async def test_nothing_waits_for_a_receiver_that_hangs(queue: Queue, clock: MovedClock, receiver: Receiver) -> None:
    await add(queue, receiver, wants=CREATED)
    receiver.hangs = True
    await queue.submit(type="code")
    await pass_time(queue, clock, 0)
    courier = asyncio.create_task(Courier(queue.engine).run_for_ever())
    await receiver.wait_for(1)
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token)
    await queue.update_sink("ops", wants={"severity": "critical"})
    await queue.pause_sink("ops")
    assert await queue.remove_sink("ops")
    receiver.end.set()
    courier.cancel()
    await asyncio.gather(courier, return_exceptions=True)
    await pass_time(queue, clock, 1)
    assert await queue.deliveries() == []
