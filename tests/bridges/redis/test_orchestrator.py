"""The queue as orchestrator for hand-written workers of the Redis Streams protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from tests.bridges.redis.streams import RESULT, TASK, Client, HandWorker, entries, given, pending, submit, taken

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.requirement("R-003", "R-007", "R-030", "R-038")
async def test_submitted_task_is_an_entry_with_protocol_fields(
    streams: Queue, bridge: Orchestrator, redis: Client
) -> None:
    task_id = await submit(streams, traceparent=TRACE)
    await bridge.run_once()
    (entry,) = await entries(redis, TASK)
    assert json.loads(entry.pop("payload")) == {"to": "ada"}
    assert entry.pop("trace") == TRACE
    assert entry == {
        "task_id": task_id, "tool_name": "send_mail", "idempotency_key": "order-1", "retry_count": "0", "type": "tool",
    }  # fmt: skip
    assert (await streams.get(task_id)).status == "ready"


@pytest.mark.requirement("R-008", "R-015", "R-049")
async def test_task_is_running_once_a_worker_has_read_its_entry(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, (message_id, _) = await taken(streams, bridge, worker)
    task = await streams.get(task_id)
    assert (task.status, task.claim.agent_id) == ("running", "worker-1")
    assert await pending(redis) == 1
    claimed = [event for event in (await streams.tasks.history(task_id)).events if "task.claimed" in event.names]
    assert [event.data for event in claimed] == [{"message_id": message_id}]


@pytest.mark.requirement("R-004", "R-009", "R-014", "R-057")
async def test_result_completes_the_task_once_and_leaves_nothing_pending(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await taken(streams, bridge, worker)
    await worker.succeed(entry, {"sent": True})
    await bridge.run_once()
    task = await streams.get(task_id)
    assert task.status == "completed"
    assert task.result is not None
    assert (task.result.data, task.result.worker_id) == ({"sent": True}, "worker-1")
    assert await pending(redis) == 0
    assert await redis.xlen(TASK) == 0
    assert await redis.xlen(RESULT) == 1


@pytest.mark.requirement("R-006")
async def test_each_entry_goes_to_one_worker(streams: Queue, bridge: Orchestrator, redis: Client) -> None:
    tasks = [await submit(streams, f"order-{n}") for n in range(6)]
    await bridge.run_once()
    first, second = HandWorker(redis, "worker-1"), HandWorker(redis, "worker-2")
    one, two = await first.read(3), await second.read(10)
    assert [fields["task_id"] for _, fields in one + two] == tasks
    await bridge.run_once()
    holders = [(await streams.get(task_id)).claim.agent_id for task_id in tasks]
    assert holders == ["worker-1"] * 3 + ["worker-2"] * 3


async def test_result_sent_before_the_scan_is_accepted(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await given(streams, bridge, worker)
    await worker.succeed(entry, 7)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.status, task.result and task.result.data) == ("completed", 7)
    assert [event.verb for event in (await streams.tasks.history(task_id)).events] == [
        "submitted",
        "published",
        "claimed",
        "completed",
    ]


async def test_published_task_is_not_claimable_by_own_agents(streams: Queue, bridge: Orchestrator) -> None:
    task_id = await submit(streams)
    await bridge.run_once()
    assert await streams.claim("local") == []
    assert "stream" in (await streams.explain(task_id)).summary


async def test_unread_entries_are_bounded_by_ahead(
    streams: Queue, make_bridge: Callable[..., Orchestrator], redis: Client
) -> None:
    bridge = make_bridge(ahead=2)
    for n in range(5):
        await submit(streams, f"order-{n}")
    await bridge.run_once()
    assert await redis.xlen(TASK) == 2
    worker = HandWorker(redis, "worker-1")
    await worker.read_one()
    await bridge.run_once()
    assert await redis.xlen(TASK) == 3


async def test_only_configured_types_are_published(
    streams: Queue, make_bridge: Callable[..., Orchestrator], redis: Client
) -> None:
    bridge = make_bridge(types=("remote",))
    await submit(streams, "here", type="local")
    there = await submit(streams, "there", type="remote")
    await bridge.run_once()
    assert [entry["task_id"] for entry in await entries(redis, TASK)] == [there]


async def test_serial_tasks_are_left_to_own_agents(streams: Queue, bridge: Orchestrator, redis: Client) -> None:
    await streams.settings.set("serialize_by", "key")
    for number in range(2):
        await submit(streams, key=f"order-{number}", serial_key="stock")
    await bridge.run_once()
    assert await redis.xlen(TASK) == 0
    assert len(await streams.claim("ours", 2)) == 1


@pytest.mark.parametrize("way", ["pause", "cancel", "update"])
async def test_unread_entry_is_withdrawn_when_its_task_must_not_run(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, way: str
) -> None:
    task_id = await submit(streams)
    await bridge.run_once()
    if way == "pause":
        await streams.control.pause()
    elif way == "cancel":
        await streams.cancel(task_id)
    else:
        await streams.control.pause()
        await streams.tasks.update(task_id, {"priority": 10})
    await bridge.run_once()
    assert await redis.xlen(TASK) == 0
    assert await worker.read() == []
    await streams.control.resume()
    await bridge.run_once()
    assert await redis.xlen(TASK) == (0 if way == "cancel" else 1)


async def test_changed_task_is_published_again(streams: Queue, bridge: Orchestrator, redis: Client) -> None:
    task_id = await submit(streams, type="tool")
    await bridge.run_once()
    (before,) = await redis.xrange(TASK)
    await streams.tasks.update(task_id, {"priority": 10})
    await bridge.run_once()
    (after,) = await redis.xrange(TASK)
    assert before[0] != after[0]
    assert before[1]["task_id"] == after[1]["task_id"]


async def test_two_bridges_publish_and_accept_each_task_once(
    streams: Queue, make_bridge: Callable[..., Orchestrator], redis: Client
) -> None:
    """Every scan of one overlaps a scan of the other."""
    bridges = [make_bridge(), make_bridge()]
    tasks = {await submit(streams, f"order-{n}") for n in range(40)}
    worker, seen = HandWorker(redis, "worker-1"), []
    for _ in range(12):
        await asyncio.gather(*(bridge.run_once() for bridge in bridges))
        for entry in await worker.read(7):
            seen.append(entry[1]["task_id"])
            await worker.succeed(entry)
    await asyncio.gather(*(bridge.run_once() for bridge in bridges))
    assert sorted(seen) == sorted(tasks)
    assert {(await streams.get(task_id)).status for task_id in tasks} == {"completed"}
    events = (await streams.events(limit=10_000)).events
    assert sum(event.verb == "completed" for event in events) == 40
    assert (await pending(redis), await redis.xlen(TASK)) == (0, 0)


async def test_all_unread_entries_can_be_withdrawn(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    first, second = await submit(streams, "a"), await submit(streams, "b")
    await bridge.run_once()
    await worker.read_one()
    await bridge.run_once()
    assert await bridge.withdraw() == 1
    assert [found.id for found in await streams.claim("local", 5)] == [second]
    assert (await streams.get(first)).status == "running"


@pytest.mark.parametrize("name", ["a\0b", "n" * 5000, "\u202eevil", "\\xff"])
async def test_consumer_can_have_any_name(streams: Queue, bridge: Orchestrator, redis: Client, name: str) -> None:
    task_id = await submit(streams)
    await bridge.run_once()
    await HandWorker(redis, name).read_one()
    await bridge.run_once()
    assert (await streams.get(task_id)).status == "running"


async def test_bridges_are_listed_with_their_entries(streams: Queue, bridge: Orchestrator, worker: HandWorker) -> None:
    await submit(streams, "a")
    await submit(streams, "b")
    await bridge.run_once()
    await worker.read_one()
    await bridge.run_once()
    (found,) = await streams.control.bridges()
    assert (found.name, found.role, found.unread, found.taken) == ("redis", "orchestrator", 1, 1)
    assert await streams.in_workspace("other").control.bridges() == []
