"""Agents of this queue as workers for a foreign orchestrator, and for another Shiftwork queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.cli import bridge_commands
from shiftwork.cli.bridge_commands import until_stopped
from shiftwork.compat.bridges.redis import bridge_process
from shiftwork.compat.bridges.redis.foreign_orchestrator import ForeignGroup
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.model.errors import QueueFull, WrongState
from shiftwork.testing import MovedClock
from tests.bridges.redis.streams import DLQ, GROUP, RESULT, TASK, Client, entries, foreign, pending, submit


@pytest.fixture
async def side(queue: Queue, redis_url: str, redis: Client) -> AsyncIterator[ForeignGroup]:
    """Our side, in the default profile; the orchestrator has created the group."""
    await redis.xgroup_create(TASK, GROUP, id="0", mkstream=True)
    made = foreign(queue, redis_url)
    yield made
    await made.context.redis.aclose()


async def order(redis: Client, key: str = "key-1", retry_count: Any = 0, **fields: Any) -> str:
    """Write a task as an orchestrator does; return the message id."""
    given = {"task_id": f"theirs-{key}", "tool_name": "send_mail", "payload": '{"to": "ada"}', "idempotency_key": key}
    written: str = await redis.xadd(TASK, {**given, "retry_count": str(retry_count), "type": "mail", **fields})
    return written


async def test_stream_entry_becomes_a_task_and_its_result_is_written_back(
    queue: Queue, side: ForeignGroup, redis: Client
) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    await order(redis, trace=trace)
    await side.run_once()
    (claim,) = await queue.claim("ada", start=True)
    task = claim.task()
    assert task.traceparent == trace
    assert (task.type, task.tool_name, task.payload, task.idempotency_key) == (
        "mail", "send_mail", {"to": "ada"}, "key-1",
    )  # fmt: skip
    await side.run_once()
    assert await pending(redis) == 1
    await queue.complete(claim.token, {"sent": True})
    await side.run_once()
    assert await entries(redis, RESULT) == [
        {
            "task_id": "theirs-key-1", "status": "succeeded", "result": '{"sent":true}', "error": "",
            "retryable": "true", "worker": side.context.us,
        }
    ]  # fmt: skip
    assert await pending(redis) == 0


async def test_text_result_is_written_back(queue: Queue, side: ForeignGroup, redis: Client) -> None:
    await order(redis)
    await side.run_once()
    (claim,) = await queue.claim("ada", start=True)
    await queue.complete(claim.token, text="what it printed")
    await side.run_once()
    assert [each["result"] for each in await entries(redis, RESULT)] == ['"what it printed"']


async def test_orchestrator_decides_retries_and_last_failure_is_dead_lettered(
    queue: Queue, side: ForeignGroup, redis: Client
) -> None:
    for retry_count in range(4):
        await order(redis, retry_count=retry_count)
        await side.run_once()
        (claim,) = await queue.claim("ada", start=True)
        await queue.fail(claim.token, "crash", f"boom {retry_count}")
        await side.run_once()
    stated = await entries(redis, RESULT)
    assert [(each["status"], each["error"], each["retryable"]) for each in stated] == [
        ("failed", f"boom {n}", "true") for n in range(3)
    ]
    (letter,) = await entries(redis, DLQ)
    assert (letter["task_id"], letter["error"], letter["retry_count"]) == ("theirs-key-1", "boom 3", "4")
    assert json.loads(letter["payload"]) == {"to": "ada"}
    assert "written_by" not in letter
    assert await pending(redis) == 0


async def test_invalid_input_is_a_dead_letter_at_once(queue: Queue, side: ForeignGroup, redis: Client) -> None:
    await order(redis)
    await side.run_once()
    (claim,) = await queue.claim("ada", start=True)
    await queue.fail(claim.token, "invalid_input", "no such customer")
    await side.run_once()
    assert [letter["error"] for letter in await entries(redis, DLQ)] == ["no such customer"]
    assert await redis.xlen(RESULT) == 0


@pytest.mark.requirement("R-013", "R-032")
async def test_same_key_sent_twice_is_run_once_and_answered_twice(
    queue: Queue, side: ForeignGroup, redis: Client
) -> None:
    await order(redis)
    await order(redis)
    await side.run_once()
    (claim,) = await queue.claim("ada", 5, start=True)
    await queue.complete(claim.token, 7)
    await order(redis)
    await side.run_once()
    await side.run_once()
    assert await queue.claim("ada") == []
    assert [each["result"] for each in await entries(redis, RESULT)] == ["7", "7", "7"]
    assert await pending(redis) == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"task_id": ""}, "task_id is missing"),
        ({"idempotency_key": ""}, "idempotency_key is missing"),
        ({"payload": "{"}, "payload: not JSON"),
        ({"payload": "[1]"}, "payload: expected a JSON object"),
        ({"retry_count": "many"}, "retry_count: expected a whole number"),
        ({"retry_count": "9" * 5000}, "retry_count: expected a whole number"),
        ({"type": "x" * 300}, "type"),
    ],
)
@pytest.mark.requirement("R-035")
async def test_malformed_entry_is_dead_lettered_with_the_reason(
    queue: Queue, side: ForeignGroup, redis: Client, fields: dict[str, str], why: str
) -> None:
    await order(redis, **fields)
    await side.run_once()
    (letter,) = await entries(redis, DLQ)
    assert why in letter["error"]
    assert await pending(redis) == 0
    assert (await queue.tasks.list()).tasks == []


async def test_entry_in_progress_is_not_idle_for_the_orchestrator(
    queue: Queue, side: ForeignGroup, redis: Client
) -> None:
    message_id = await order(redis)
    await side.run_once()
    await redis.xclaim(TASK, GROUP, side.context.us, 0, [message_id], idle=299_000, justid=True)
    await side.run_once()
    (held,) = await redis.xpending_range(TASK, GROUP, "-", "+", 1)
    assert held["time_since_delivered"] < 100_000


async def test_answer_to_a_reclaimed_entry_is_dropped(queue: Queue, side: ForeignGroup, redis: Client) -> None:
    message_id = await order(redis)
    await side.run_once()
    (claim,) = await queue.claim("ada", start=True)
    await redis.xclaim(TASK, GROUP, "another", 0, [message_id])
    await queue.complete(claim.token)
    await side.run_once()
    assert await redis.xlen(RESULT) == 0
    assert await pending(redis) == 1


async def test_bridge_killed_before_recording_a_task_imports_it_once(
    queue: Queue, side: ForeignGroup, redis: Client, redis_url: str
) -> None:
    """Read and submitted, and then killed: the entry is still pending for this consumer."""
    await order(redis)
    await redis.xreadgroup(GROUP, side.context.us, {TASK: ">"})
    await queue.submit(type="mail", tool_name="send_mail", payload={"to": "ada"}, idempotency_key="key-1")
    await side.run_once()
    await side.run_once()
    (claim,) = await queue.claim("ada", 5, start=True)
    await queue.complete(claim.token)
    await side.run_once()
    assert await redis.xlen(RESULT) == 1


async def test_bridge_reads_at_most_ahead_entries(
    queue: Queue, redis: Client, redis_url: str, side: ForeignGroup
) -> None:
    narrow = foreign(queue, redis_url, ahead=2)
    for n in range(5):
        await order(redis, f"key-{n}")
    await narrow.run_once()
    await narrow.run_once()
    assert len((await queue.tasks.list()).tasks) == 2
    await narrow.context.redis.aclose()


@pytest.mark.parametrize("ahead", [100, 200])
async def test_entries_without_room_in_the_queue_wait_for_it(
    queue: Queue, redis: Client, redis_url: str, side: ForeignGroup, ahead: int
) -> None:
    """No entry is refused, and no entry is read that another worker of the group could run."""
    await queue.settings.set("max_queue_size", 1)
    for n in range(120):
        await order(redis, f"key-{n}")
    await side.run_once()
    (claim,) = await queue.claim("ada", 5, start=True)
    await side.run_once()
    assert (len((await queue.tasks.list()).tasks), await pending(redis)) == (2, 100)
    assert (await redis.xlen(DLQ), await redis.xlen(RESULT)) == (0, 0)
    await queue.complete(claim.token)
    await queue.settings.unset("max_queue_size")
    restarted = foreign(queue, redis_url, ahead=ahead)
    await restarted.run_once()
    await restarted.run_once()
    # One is answered, so that there is room for another.
    assert len((await queue.tasks.list(limit=200)).tasks) == min(ahead + 1, 120)
    await restarted.context.redis.aclose()


async def test_refused_duplicate_key_is_still_the_same_task(queue: Queue, side: ForeignGroup, redis: Client) -> None:
    await queue.settings.set("idempotency.on_duplicate", "reject")
    await order(redis)
    await order(redis)
    await side.run_once()
    (claim,) = await queue.claim("ada", 5, start=True)
    await queue.complete(claim.token, 7)
    await order(redis)
    await side.run_once()
    await side.run_once()
    assert [each["result"] for each in await entries(redis, RESULT)] == ["7", "7", "7"]
    assert await pending(redis) == 0


async def test_bridge_continues_after_expected_errors_of_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an unexpected exception, such as a bug, ends it."""
    monkeypatch.setattr(bridge_process, "MIN_PAUSE_SEC", 0.0)
    outcomes: list[Exception] = [QueueFull("1 task waits"), WrongState("it is completed"), ZeroDivisionError()]

    class Odd:
        async def run_once(self, **_: Any) -> int:
            raise outcomes.pop(0)

    with pytest.raises(ZeroDivisionError):
        await bridge_process.poll_until(Odd(), asyncio.Event())
    assert outcomes == []


class Deaf:
    """Swallows a cancellation, as `asyncio.wait_for` of Python 3.11 does when its result arrives at that moment."""

    def __init__(self) -> None:
        self.looks = asyncio.Event()

    async def run_once(self, **_: Any) -> int:
        self.looks.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 0


async def test_bridge_stops_although_a_scan_swallows_the_cancellation() -> None:
    side, stopped = Deaf(), asyncio.Event()
    ending = asyncio.create_task(until_stopped(stopped, bridge_process.poll_until(side, stopped)))
    await side.looks.wait()
    stopped.set()
    async with asyncio.timeout(20):
        await ending


async def test_command_stops_a_task_that_swallows_its_first_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_commands, "CANCEL_AGAIN_SEC", 0.01)
    side, stopped = Deaf(), asyncio.Event()

    async def endless() -> None:
        await side.run_once()
        await asyncio.Event().wait()

    ending = asyncio.create_task(until_stopped(stopped, endless()))
    await side.looks.wait()
    stopped.set()
    async with asyncio.timeout(20):
        await ending


async def test_bridge_at_its_read_limit_does_not_spin(
    queue: Queue, redis: Client, redis_url: str, side: ForeignGroup
) -> None:
    narrow = foreign(queue, redis_url, ahead=1)
    await order(redis)
    await narrow.run_once()
    began = asyncio.get_running_loop().time()
    await narrow.run_once(thorough=False, wait_ms=50)
    assert asyncio.get_running_loop().time() - began >= 0.049
    await narrow.context.redis.aclose()


async def test_two_queues_work_as_orchestrator_and_worker(
    streams: Queue, bridge: Orchestrator, redis_url: str, redis: Client, tmp_path: Path, clock: MovedClock
) -> None:
    task_id, lost = await submit(streams, "order-1"), await submit(streams, "order-2", payload={"to": ""})
    async with Queue.open(f"sqlite:///{tmp_path}/workers.db", clock=clock) as workers:
        there = foreign(workers, redis_url)
        await workers.agents.register(id="ada", max_concurrent_tasks=5)
        await bridge.run_once()
        await there.run_once()
        await bridge.run_once()
        assert (await streams.get(task_id)).status == "running"
        for claim in await workers.claim("ada", 5, start=True):
            if claim.payload["to"]:
                await workers.complete(claim.token, "sent")
            else:
                await workers.fail(claim.token, "invalid_input", "nobody to write to")
        await there.run_once()
        await there.context.redis.aclose()
    await bridge.run_once()
    done = await streams.get(task_id)
    assert (done.status, done.result and done.result.data) == ("completed", "sent")
    assert (await streams.get(lost)).last_error == "nobody to write to"
    assert (await streams.get(lost)).status == "dead_lettered"
    assert await pending(redis) == 0
