"""The events of the queue as a Redis stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.testing import MovedClock
from tests.bridges.redis.streams import Client, entries, submit

EVENTS = "stream:events"


@pytest.fixture
async def telling(make_bridge: Callable[..., Orchestrator]) -> Orchestrator:
    """A bridge that has begun to publish events."""
    bridge = make_bridge(events=True)
    await bridge.run_once()
    return bridge


async def test_every_event_from_the_first_scan_is_published_once_in_order(
    streams: Queue, telling: Orchestrator, make_bridge: Callable[..., Orchestrator], redis: Client
) -> None:
    other = make_bridge(events=True)
    task_id = ""
    for n in range(3):
        task_id = await submit(streams, f"order-{n}")
        await telling.run_once()
        await other.run_once()
    seen_events = await redis.xrange(EVENTS)
    log = (await streams.events()).events
    assert [int(message_id.partition("-")[0]) for message_id, _ in seen_events] == [e.seq for e in log if e.task_id]
    assert seen_events[-2][1]["event"] == "task.created"
    assert seen_events[-1][1] | {"at": ""} == {
        "event": "task.published", "names": "task.published", "task_id": task_id, "at": "", "actor": "bridge:redis",
        "reason": "", "data": '{"bridge":"redis"}',
    }  # fmt: skip


async def test_lost_event_stream_continues_at_its_position(
    streams: Queue, telling: Orchestrator, redis: Client
) -> None:
    await submit(streams, "before")
    await telling.run_once()
    await telling.run_once()
    before = await redis.xlen(EVENTS)
    await redis.flushdb()
    await telling.run_once()
    await streams.control.pause()
    await telling.run_once()
    after = await entries(redis, EVENTS)
    assert before >= 2
    assert "queue.paused" in [entry["event"] for entry in after]
    assert "task.created" not in [entry["event"] for entry in after]


@pytest.mark.requirement("R-016")
async def test_heartbeats_and_progress_are_not_published(
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
    log = (await streams.events(limit=1000)).events
    assert sum("task.heartbeat" in event.names for event in log) == 100
