"""Redis restarts, loses data or is unreachable, or a bridge is killed: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Away
from redis.exceptions import ResponseError

from shiftwork import Queue
from shiftwork.compat.bridges.redis import redis_results
from shiftwork.compat.bridges.redis.bridge_process import poll, poll_until
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.model.errors import RedisUnavailable
from shiftwork.testing import MovedClock
from tests.bridges.redis.streams import DLQ, RESULT, TASK, Client, HandWorker, entries, given, given_up, pending, submit
from tests.outages.relay import relay_to
from tests.services.redis import Redis as Server

ROOT = Path(__file__).resolve().parents[3]


async def test_entries_lost_by_redis_are_published_again(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    tasks = [await submit(streams, f"order-{n}") for n in range(3)]
    await bridge.run_once()
    taken = await worker.read_one()
    await bridge.run_once()
    await redis.flushdb()
    await bridge.run_once()
    await bridge.run_once()
    assert sorted(entry["task_id"] for entry in await entries(redis, TASK)) == tasks[1:]
    await worker.succeed(taken, "it went on all the same")
    for entry in await worker.read(10):
        await worker.succeed(entry)
    await bridge.run_once()
    assert {(await streams.get(task_id)).status for task_id in tasks} == {"completed"}


async def test_results_are_read_before_they_are_trimmed(
    streams: Queue, make_bridge: Callable[..., Orchestrator], redis: Client, worker: HandWorker
) -> None:
    """The bridge was stopped while its workers continued."""
    bridge = make_bridge(ahead=300, keep=1)
    tasks = [await submit(streams, f"order-{n}") for n in range(300)]
    await bridge.run_once()
    for entry in await worker.read(300):
        await worker.succeed(entry, "done")
    await bridge.run_once()
    assert {(await streams.get(task_id)).status for task_id in tasks} == {"completed"}
    assert await redis.xlen(RESULT) <= 100  # whole nodes of the stream go, and no part of one


@pytest.mark.parametrize(("heard", "read", "left"), [(0, 0, 500), (0, 250, 500), (250, 250, 300), (500, 500, 100)])
async def test_unread_results_are_not_trimmed(
    bridge: Orchestrator, redis: Client, heard: int, read: int, left: int
) -> None:
    await bridge.context.make_groups()
    ids = [await redis.xadd(RESULT, {"n": n}) for n in range(500)]
    if read:
        await redis.xreadgroup("cg:orchestrator", bridge.context.us, {RESULT: ">"}, count=read)
    if heard:
        await redis.xack(RESULT, "cg:orchestrator", *ids[:heard])
    await redis_results.trim(bridge.context, 1)
    assert await redis.xlen(RESULT) == left


@pytest.mark.parametrize("seen", ["between two looks", "by a look"])
async def test_result_lost_by_redis_costs_no_attempt(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock, seen: str
) -> None:
    """The worker answered and acknowledged; then Redis lost the answer together with the entry."""
    task_id, entry = await given(streams, bridge, worker)
    if seen == "by a look":
        await bridge.run_once()
    await worker.acknowledge(entry)
    await bridge.run_once()
    await redis.flushdb()
    clock.advance(301)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.attempts, task.status) == (0, "ready")
    await bridge.run_once()
    await worker.succeed(await worker.read_one(), "done again")
    await bridge.run_once()
    assert (await streams.get(task_id)).status == "completed"


async def test_entry_deleted_by_its_worker_without_a_result_is_a_crash(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock
) -> None:
    task_id, entry = await given(streams, bridge, worker)
    await worker.acknowledge(entry)
    await redis.xdel(TASK, entry[0])
    await bridge.run_once()
    clock.advance(301)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.attempts, task.failure_reason) == (1, "crash")


async def test_dead_letters_lost_by_redis_are_written_again(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id = await given_up(streams, bridge, worker)
    await redis.flushdb()
    await bridge.run_once()
    assert [letter["task_id"] for letter in await entries(redis, DLQ)] == [task_id]


async def test_work_continues_when_redis_is_back(
    streams: Queue, make_bridge: Callable[..., Orchestrator], own_server: Server
) -> None:
    bridge = make_bridge(own_server.url)
    redis = bridge.context.redis
    first = await submit(streams, "first")
    await bridge.run_once()
    own_server.kill9()
    second = await submit(streams, "second")
    with pytest.raises(RedisUnavailable, match="redis_unavailable"):
        await poll(bridge)
    with pytest.raises(Away):
        await bridge.run_once(thorough=False)
    own_server.start_again()
    worker, seen = HandWorker(redis, "worker-1"), Counter[str]()
    for _ in range(3):
        await bridge.run_once()
        for entry in await worker.read(10):
            seen[entry[1]["task_id"]] += 1
            await worker.succeed(entry)
    await bridge.run_once()
    assert seen == {first: 1, second: 1}
    assert {(await streams.get(task_id)).status for task_id in (first, second)} == {"completed"}


async def test_dropped_redis_connection_is_replaced(
    streams: Queue,
    make_bridge: Callable[..., Orchestrator],
    redis: Client,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shiftwork.compat.bridges.redis.bridge_context.ANSWER_SEC", 2.0)
    async with relay_to(redis_url) as (relay, url):
        bridge = make_bridge(url)
        await bridge.run_once()
        relay.drop()
        task_id = await submit(streams)
        with pytest.raises(RedisUnavailable):
            await poll(bridge)
        await poll(bridge)
    assert [entry["task_id"] for entry in await entries(redis, TASK)] == [task_id]


async def test_running_bridge_waits_for_redis_and_continues(
    streams: Queue, make_bridge: Callable[..., Orchestrator], own_server: Server
) -> None:
    bridge = make_bridge(own_server.url)
    running = asyncio.create_task(poll_until(bridge, asyncio.Event()))
    own_server.kill9()
    task_id = await submit(streams)
    own_server.start_again()
    worker = HandWorker(Redis.from_url(own_server.url, decode_responses=True), "worker-1")
    with suppress(ResponseError):  # the bridge was faster
        await worker.redis.xgroup_create(TASK, "cg:workers", id="0", mkstream=True)
    found = await worker.redis.xreadgroup("cg:workers", "worker-1", {TASK: ">"}, block=20_000)
    assert str(found).count(task_id) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await worker.redis.aclose()


POINTS = ("published: committed", "published: written", "heard: committed", "ended: removed", "recovered")


@pytest.mark.parametrize("point", POINTS)
async def test_bridge_killed_at_any_point_is_completed_by_the_next(
    streams: Queue, make_bridge: Callable[..., Orchestrator], redis: Client, redis_url: str, store_url: str, point: str
) -> None:
    """The same two tasks, one of which fails once without retry: each has one outcome, whatever is killed."""
    worker, seen = HandWorker(redis, "worker-1"), Counter[str]()
    good, bad = await submit(streams, "good"), await submit(streams, "bad")
    command, died = [sys.executable, "-m", "tests.bridges.redis.mortal", store_url, redis_url, point], 0
    bridge = make_bridge()
    for turn in range(6):
        if turn % 2 != (point == "recovered"):
            await bridge.run_once()
        else:
            ended = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, check=False)
            assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
            died += ended.returncode != 0
        for entry in await worker.read(1):
            task_id = entry[1]["task_id"]
            seen[task_id] += 1
            if point == "recovered" and seen[task_id] == 1 and task_id == good:
                await worker.idle_for(entry, 301)
            elif task_id == good:
                await worker.succeed(entry, "done")
            else:
                await worker.fail(entry, "boom", retryable="false")
    await bridge.run_once()
    await bridge.run_once()
    assert died
    assert seen == {good: 2 if point == "recovered" else 1, bad: 1}
    assert [(await streams.get(task_id)).status for task_id in (good, bad)] == ["completed", "dead_lettered"]
    events = (await streams.events(limit=1000)).events
    assert Counter(e.verb for e in events)["completed"] == 1
    assert Counter(e.verb for e in events)["failed"] == 1
    assert (await pending(redis), await redis.xlen(TASK), await redis.xlen(DLQ)) == (0, 0, 1)
    assert (await redis.xpending(RESULT, "cg:orchestrator"))["pending"] == 0
