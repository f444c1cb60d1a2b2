"""The queue's events as a stream, for those who have their bus there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shiftwork import Queue
from shiftwork.bridges.redis.orchestrator import Orchestrator
from shiftwork.testing import MovedClock
from tests.bridges.redis.streams import Client, entries, submit

EVENTS = "stream:events"


@pytest.fixture
async def telling(make_bridge: Callable[..., Orchestrator]) -> Orchestrator:
    """A bridge that has begun to tell."""
    bridge = make_bridge(events=True)
    await bridge.run_once()
    return bridge


async def test_every_event_from_the_first_look_on_is_told_once_and_in_order(
    streams: Queue, telling: Orchestrator, make_bridge: Callable[..., Orchestrator], redis: Client
) -> None:
    other = make_bridge(events=True)
    task_id = ""
    for n in range(3):
        task_id = await submit(streams, f"order-{n}")
        await telling.run_once()
        await other.run_once()
    told = await redis.xrange(EVENTS)
    log, _ = await streams.events()
    assert [int(message_id.partition("-")[0]) for message_id, _ in told] == [e.seq for e in log if e.task_id]
    assert told[-2][1]["event"] == "task.created"
    assert told[-1][1] | {"at": ""} == {
        "event": "task.published", "names": "task.published", "task_id": task_id, "at": "", "actor": "bridge:redis",
        "reason": "", "data": '{"bridge":"redis"}',
    }  # fmt: skip


async def test_a_stream_that_redis_has_lost_goes_on_where_it_was(
    streams: Queue, telling: Orchestrator, redis: Client
) -> None:
    await submit(streams, "before")
    await telling.run_once()
    await telling.run_once()
    before = await redis.xlen(EVENTS)
    await redis.flushdb()
    await telling.run_once()
    await streams.pause()
    await telling.run_once()
    after = await entries(redis, EVENTS)
    assert before >= 2
    assert "queue.paused" in [entry["event"] for entry in after]
    assert "task.created" not in [entry["event"] for entry in after]


@pytest.mark.requirement("R-016")
async def test_signs_of_life_and_progress_are_not_told(
    streams: Queue, telling: Orchestrator, redis: Client, clock: MovedClock
) -> None:
    await submit(streams, type="local")
    (claim,) = await streams.claim("ada", start=True)
    await telling.run_once()
    await telling.run_once()
    before = await redis.xlen(EVENTS)
    for _ in range(100):
        clock.advance(30)
        await streams.heartbeat(claim.token, {"percent": 1})
        await telling.run_once(thorough=False)
    assert await redis.xlen(EVENTS) == before
    log, _ = await streams.events(limit=1000)
    assert sum("task.heartbeat" in event.names for event in log) == 100
