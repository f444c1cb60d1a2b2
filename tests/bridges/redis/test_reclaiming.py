"""Workers that go silent, report too late, or take entries from each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.redis import redis_offers, redis_results
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.compat.bridges.redis.redis_offers import ReclaimCommand
from shiftwork.compat.bridges.redis.stream_state import StreamState
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from tests.bridges.redis.old_server import older
from tests.bridges.redis.streams import GROUP, RESULT, TASK, Client, HandWorker, emitted, given, pending, submit, taken
from tests.services.redis import Redis as Server


@pytest.mark.requirement("R-018", "R-019", "R-024")
async def test_entry_is_reclaimed_at_300_seconds_and_not_before(
    streams: Queue, bridge: Orchestrator, worker: HandWorker
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await worker.idle_for(entry, 290)
    await bridge.run_once()
    assert (await streams.get(task_id)).claim.agent_id == "worker-1"
    await worker.idle_for(entry, 300)
    await bridge.run_once()
    assert (await streams.get(task_id)).claim.agent_id is None


@pytest.mark.parametrize("way", ["xautoclaim", "xclaim"])
@pytest.mark.requirement("R-021", "R-022", "R-023", "R-025", "R-052", "R-059")
async def test_task_of_a_silent_worker_goes_to_another_and_is_logged(
    streams: Queue, make_bridge: Callable[..., Orchestrator], own_server: Server, way: str
) -> None:
    bridge = make_bridge(own_server.url, reclaim=way)
    redis = bridge.context.redis
    worker, other = HandWorker(redis, "worker-1"), HandWorker(redis, "worker-2")
    task_id, entry = await taken(streams, bridge, worker)
    await worker.idle_for(entry, 301)
    await bridge.run_once()
    again = await other.read_one()
    await bridge.run_once()
    claims = [event for event in (await streams.tasks.history(task_id)).events if event.verb == "claimed"]
    assert claims[-1].data == {
        "original_consumer": "worker-1", "new_consumer": "worker-2", "message_id": again[0],
    }  # fmt: skip
    await other.succeed(again)
    await bridge.run_once()
    assert (await streams.get(task_id)).attempts == 0
    assert await emitted(streams, task_id) == [
        "task.created", "task.claimed", "task.claimed", "task.reclaimed", "task.succeeded",
    ]  # fmt: skip
    used = await redis.info("commandstats")
    assert ("cmdstat_xautoclaim" in used) == (way == "xautoclaim")
    assert f"cmdstat_{way}" in used
    assert await pending(redis) == 0


@pytest.mark.requirement("R-023")
async def test_old_redis_server_is_used_with_xclaim(
    streams: Queue, make_bridge: Callable[..., Orchestrator], own_server: Server
) -> None:
    async with older(own_server.url) as url:
        bridge = make_bridge(url)
        worker = HandWorker(bridge.context.redis, "worker-1")
        task_id, entry = await taken(streams, bridge, worker)
        await worker.idle_for(entry, 301)
        await bridge.run_once()
        assert (await streams.get(task_id)).claim.agent_id is None
        used = await bridge.context.redis.info("commandstats")
        assert int(used["cmdstat_xclaim"]["calls"]) == 2  # the worker's own, and the bridge's
        assert "cmdstat_xautoclaim" not in used
        assert await redis_offers.supported_command(make_bridge(own_server.url).context) == "xautoclaim"


@pytest.mark.requirement("R-012")
async def test_late_result_changes_nothing_after_reclaim(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await worker.idle_for(entry, 301)
    await bridge.run_once()
    await worker.succeed(entry, "late, before anybody has it")
    await bridge.run_once()
    other = HandWorker(redis, "worker-2")
    again = await other.read_one()
    await bridge.run_once()
    await worker.succeed(entry, "late, while another has it")
    await bridge.run_once()
    assert (await streams.get(task_id)).claim.agent_id == "worker-2"
    await other.succeed(again, "in time")
    await bridge.run_once()
    result = (await streams.get(task_id)).result
    assert result is not None
    assert result.data == "in time"


@pytest.mark.requirement("R-012")
async def test_first_of_two_results_is_kept(streams: Queue, bridge: Orchestrator, worker: HandWorker) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await worker.say(entry, "succeeded", result='"first"')
    await worker.say(entry, "failed", error="second")
    await bridge.run_once()
    await worker.say(entry, "succeeded", result='"third"')
    await bridge.run_once()
    result = (await streams.get(task_id)).result
    assert result is not None
    assert result.data == "first"
    assert (await emitted(streams, task_id)).count("task.succeeded") == 1


async def test_failure_is_not_repeated_for_the_next_attempt(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock
) -> None:
    """Redis lost the acknowledgement of the entry, and the same worker has the task again."""
    task_id, entry = await taken(streams, bridge, worker)
    stated = await worker.say(entry, "failed", error="boom")
    await bridge.run_once()
    clock.advance(60)
    await run_once(streams.engine, force=True)
    await bridge.run_once()
    await worker.read_one()
    await bridge.run_once()
    await redis.xgroup_setid(RESULT, "cg:orchestrator", "0")
    await bridge.run_once()
    assert stated
    task = await streams.get(task_id)
    assert (task.status, task.attempts) == ("running", 1)


async def test_worker_can_take_over_from_another(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await redis.xclaim(TASK, GROUP, "worker-2", 0, [entry[0]])
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.status, task.claim.agent_id) == ("running", "worker-2")
    await worker.succeed(entry, "lost it")
    await bridge.run_once()
    assert (await streams.get(task_id)).status == "running"
    await HandWorker(redis, "worker-2").succeed(entry, "has it")
    await bridge.run_once()
    result = (await streams.get(task_id)).result
    assert result is not None
    assert result.data == "has it"
    assert "task.reclaimed" in await emitted(streams, task_id)


async def test_result_of_an_unseen_takeover_is_accepted(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await redis.xclaim(TASK, GROUP, "worker-2", 0, [entry[0]])
    await HandWorker(redis, "worker-2").succeed(entry, "has it")
    await bridge.run_once()
    result = (await streams.get(task_id)).result
    assert result is not None
    assert (result.data, result.worker_id) == ("has it", "worker-2")


@pytest.mark.parametrize("acknowledged", ["after a look", "at once"])
async def test_acknowledgement_without_result_is_a_crash_after_the_timeout(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock, acknowledged: str
) -> None:
    task_id, entry = await given(streams, bridge, worker)
    if acknowledged == "after a look":
        await bridge.run_once()
    await worker.acknowledge(entry)
    await bridge.run_once()
    clock.advance(299)
    await bridge.run_once()
    assert (await streams.get(task_id)).attempts == 0
    clock.advance(1)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "crash")
    assert await redis.xlen(TASK) == 0


async def test_queue_clock_alone_does_not_reclaim_from_foreign_worker(
    streams: Queue, bridge: Orchestrator, worker: HandWorker, clock: MovedClock
) -> None:
    """While no bridge scans, the result may already be in the stream."""
    task_id, entry = await taken(streams, bridge, worker)
    await worker.succeed(entry, "long ago")
    clock.advance(3600)
    await run_once(streams.engine, force=True)
    assert (await streams.get(task_id)).status == "running"
    await bridge.run_once()
    assert (await streams.get(task_id)).status == "completed"


@pytest.mark.requirement("R-016")
async def test_heartbeats_are_not_written_to_the_streams(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock
) -> None:
    task_id, _ = await taken(streams, bridge, worker)
    before = [await redis.xlen(TASK), await redis.xlen(RESULT)]
    token = await streams.claims.current_token(task_id)
    for _ in range(100):
        clock.advance(1)
        await streams.heartbeat(token, {"percent": 50})
        await bridge.run_once(thorough=False)
    assert [await redis.xlen(TASK), await redis.xlen(RESULT)] == before


@pytest.mark.parametrize("read_by", ["us", "another bridge"])
@pytest.mark.parametrize("look", ["thorough", "short"])
async def test_result_arriving_during_a_scan_counts(
    streams: Queue,
    make_bridge: Callable[..., Orchestrator],
    redis: Client,
    worker: HandWorker,
    clock: MovedClock,
    monkeypatch: pytest.MonkeyPatch,
    read_by: str,
    look: str,
) -> None:
    """The worker keeps its entry longer than the visibility timeout, and finishes between two steps of the scan."""
    bridge, other = make_bridge(), make_bridge()
    task_id, entry = await taken(streams, bridge, worker)
    clock.advance(3600)
    await bridge.run_once()
    stream_state = bridge.context.stream_state

    async def after_the_result() -> StreamState:
        if not await redis.xlen(RESULT):
            await worker.succeed(entry, "in time")
            if read_by == "another bridge":
                await redis_results.read_entries(other.context)
        return await stream_state()

    monkeypatch.setattr(bridge.context, "stream_state", after_the_result)
    await bridge.run_once(thorough=look == "thorough")
    task = await streams.get(task_id)
    assert (task.status, task.attempts, task.result and task.result.data) == ("completed", 0, "in time")
    assert (await redis.xlen(TASK), (await redis.xpending(RESULT, "cg:orchestrator"))["pending"]) == (0, 0)


async def test_result_arriving_during_reclaim_counts(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await worker.idle_for(entry, 301)
    recover = redis_offers.recover

    async def before_the_result(context: BridgeContext, command: ReclaimCommand, visibility_sec: float) -> int:
        found = await recover(context, command, visibility_sec)
        await worker.say(entry, "succeeded", result='"in time"')
        return found

    monkeypatch.setattr(redis_offers, "recover", before_the_result)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.status, task.result and task.result.data) == ("completed", "in time")
    assert (await redis.xlen(TASK), await pending(redis)) == (0, 0)


async def test_entry_read_and_answered_during_a_scan_is_accepted(
    streams: Queue,
    bridge: Orchestrator,
    redis: Client,
    worker: HandWorker,
    clock: MovedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the scan reclaims another task: what it read at its beginning is outdated."""
    silent, entry = await taken(streams, bridge, worker)
    quick = await submit(streams, "order-2")
    await bridge.run_once()
    await worker.acknowledge(entry)
    clock.advance(3600)
    stream_state, read = bridge.context.stream_state, list[str]()

    async def before_the_reading() -> StreamState:
        seen = await stream_state()
        if not read:
            second = await worker.read_one()
            read.append(second[0])
            await worker.succeed(second, "quick")
        return seen

    monkeypatch.setattr(bridge.context, "stream_state", before_the_reading)
    await bridge.run_once(thorough=False)
    assert (await streams.get(silent)).failure_reason == "crash"
    assert (await streams.get(quick)).status == "completed"
