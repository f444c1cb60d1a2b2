"""Failures of foreign workers: retries, dead letters and reviews."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.redis.fields import LETTER
from shiftwork.compat.bridges.redis.orchestrator import Orchestrator
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from tests.bridges.redis.streams import (
    DLQ,
    RESULT,
    TASK,
    Client,
    HandWorker,
    emitted,
    entries,
    foreign,
    given,
    given_up,
    pending,
    submit,
    taken,
)
from tests.conformance.steps import sql

SCHEDULE = (60, 300, 900)


async def fail_once(bridge: Orchestrator, worker: HandWorker, error: str) -> dict[str, str]:
    """Fail the worker's next attempt; return the fields it read."""
    await bridge.run_once()
    entry = await worker.read_one()
    await bridge.run_once()
    await worker.fail(entry, error)
    await bridge.run_once()
    return entry[1]


async def exhaust(queue: Queue, bridge: Orchestrator, worker: HandWorker, clock: MovedClock) -> list[dict[str, str]]:
    """Fail until the queue stops retrying; return what the worker read each time."""
    given = []
    for number, delay in enumerate((*SCHEDULE, 0)):
        given.append(await fail_once(bridge, worker, f"boom {number + 1}"))
        clock.advance(delay)
        await run_once(queue.engine, force=True)
    return given


@pytest.mark.requirement("R-005", "R-026", "R-027", "R-028", "R-034", "R-036", "R-058")
@pytest.mark.requirement("R-037", "R-039", "R-040", "R-041", "R-042")
async def test_fourth_failure_is_a_dead_letter(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock
) -> None:
    task_id = await submit(streams)
    given = await exhaust(streams, bridge, worker, clock)
    assert [fields["retry_count"] for fields in given] == ["0", "1", "2", "3"]
    await bridge.run_once()
    (letter,) = await entries(redis, DLQ)
    assert set(LETTER) <= letter.keys()
    assert (letter["task_id"], letter["tool_name"], letter["retry_count"]) == (task_id, "send_mail", "4")
    assert (json.loads(letter["payload"]), letter["error"]) == ({"to": "ada"}, "boom 4")
    assert (await streams.get(task_id)).status == "dead_lettered"
    assert await emitted(streams, task_id) == ["task.created", *["task.claimed", "task.failed"] * 4, "task.dlq"]
    assert (await pending(redis), await redis.xlen(TASK), await redis.xlen(RESULT)) == (0, 0, 4)


@pytest.mark.requirement("R-029")
async def test_retry_is_not_published_before_its_time(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, clock: MovedClock
) -> None:
    await submit(streams)
    await fail_once(bridge, worker, "boom")
    clock.advance(59)
    await run_once(streams.engine, force=True)
    await bridge.run_once()
    assert await redis.xlen(TASK) == 0
    clock.advance(1)
    await run_once(streams.engine, force=True)
    await bridge.run_once()
    assert await redis.xlen(TASK) == 1


async def test_non_retryable_failure_is_a_dead_letter_at_once(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id = await given_up(streams, bridge, worker)
    assert (await streams.get(task_id)).status == "dead_lettered"
    assert [letter["error"] for letter in await entries(redis, DLQ)] == ["no such customer"]


@pytest.mark.requirement("R-035", "R-043", "R-053")
async def test_dead_letter_added_by_a_worker_is_a_final_failure(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id, entry = await given(streams, bridge, worker)
    letter = {"task_id": task_id, "tool_name": "send_mail", "payload": entry[1]["payload"]}
    await redis.xadd(DLQ, {**letter, "error": "schema invalid: no subject", "retry_count": "0", "failed_at": "now"})
    await worker.acknowledge(entry)
    await bridge.run_once()
    task = await streams.get(task_id)
    assert (task.status, task.attempts, task.last_error) == ("dead_lettered", 1, "schema invalid: no subject")
    (only,) = await entries(redis, DLQ)
    assert (only["retry_count"], only["written_by"]) == ("1", "queue")
    assert await emitted(streams, task_id) == ["task.created", "task.claimed", "task.failed", "task.dlq"]
    await bridge.run_once()
    assert await redis.xlen(DLQ) == 1


@pytest.mark.requirement("R-045")
async def test_dead_letter_is_retried_with_changed_payload(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id = await given_up(streams, bridge, worker)
    await streams.dead_letters.review(task_id, "modify_and_retry", change={"payload": {"to": "grace"}})
    await bridge.run_once()
    assert await redis.xlen(DLQ) == 0
    entry = await worker.read_one()
    assert (json.loads(entry[1]["payload"]), entry[1]["retry_count"]) == ({"to": "grace"}, "0")
    await worker.succeed(entry)
    await bridge.run_once()
    assert (await streams.get(task_id)).status == "completed"


@pytest.mark.requirement("R-046")
async def test_abandoned_dead_letter_stays_and_is_not_retried(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    task_id = await given_up(streams, bridge, worker)
    await streams.dead_letters.review(task_id, "abandon", note="the customer is gone")
    await bridge.run_once()
    assert (await redis.xlen(DLQ), await redis.xlen(TASK)) == (1, 0)
    (letter,) = await streams.dead_letters.list(reviewed_too=True)
    assert (letter.resolution, letter.reviewed) == ("abandon", True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "succeeded", "worker": "worker-1"}, "task_id is missing"),
        ({"task_id": "TASK", "worker": "worker-1"}, "status is missing"),
        ({"task_id": "TASK", "status": "done", "worker": "worker-1"}, "expected succeeded or failed, got 'done'"),
        ({"task_id": "TASK", "status": "succeeded", "worker": "worker-1", "result": "{"}, "result: not JSON"),
        ({"task_id": "TASK", "status": "succeeded", "worker": "worker-1", "result": "[" * 99_999}, "result: not JSON"),
        (
            {"task_id": "TASK", "status": "succeeded", "worker": "worker-1", "result": "[" * 99 + "]" * 99},
            "nested deeper",
        ),
        ({"task_id": "nobody", "status": "succeeded", "worker": "worker-1"}, "there is no task 'nobody'"),
        ({"task_id": "TASK", "status": "failed", "worker": "worker-1", "error": "a\0b"}, "NUL"),
        ({"task_id": "TASK", "status": "succeeded", "worker": "w" * 300}, "at most 255"),
    ],
)
async def test_malformed_result_is_dead_lettered_with_the_reason(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker, fields: dict[str, Any], why: str
) -> None:
    task_id, _ = await given(streams, bridge, worker)
    await redis.xadd(RESULT, {name: task_id if value == "TASK" else value for name, value in fields.items()})
    await bridge.run_once()
    (letter,) = await entries(redis, DLQ)
    assert why in letter["error"]
    assert json.loads(letter["payload"])["stream"] == RESULT
    assert (await streams.get(task_id)).status == "running"
    await bridge.run_once()
    assert await redis.xlen(DLQ) == 1
    assert (await redis.xpending(RESULT, "cg:orchestrator"))["pending"] == 0


@pytest.mark.requirement("R-005")
async def test_result_without_a_worker_counts_for_the_consumer_of_the_entry(
    streams: Queue, bridge: Orchestrator, redis: Client, worker: HandWorker
) -> None:
    seen, entry = await taken(streams, bridge, worker)
    unseen, other = await given(streams, bridge, worker, "order-2")
    for task_id, message in ((seen, entry), (unseen, other)):
        await redis.xadd(RESULT, {"task_id": task_id, "status": "succeeded", "result": '"done"'})
        await worker.acknowledge(message)
    await bridge.run_once()
    tasks = [await streams.get(task_id) for task_id in (seen, unseen)]
    assert [(task.status, task.attempts) for task in tasks] == [("completed", 0), ("completed", 0)]
    assert tasks[0].result is not None
    assert tasks[0].result.worker_id == "worker-1"
    assert await redis.xlen(DLQ) == 0


async def test_entry_without_a_task_is_acknowledged_dead_lettered_and_logged(
    streams: Queue,
    bridge: Orchestrator,
    redis: Client,
    worker: HandWorker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await bridge.run_once()
    await redis.xadd(TASK, {"garbage": "\x00\x01 {"})
    await worker.idle_for(await worker.read_one(), 301)  # its worker died
    await bridge.run_once()
    assert await pending(redis) == 0
    (letter,) = await entries(redis, DLQ)
    assert json.loads(letter["payload"])["stream"] == TASK
    assert letter["written_by"] == "queue"
    assert "malformed entry" in caplog.text
    log = await sql(streams, "select event_type, task_id from event_log")
    assert [(row["event_type"], row["task_id"]) for row in log] == [("task.dlq", None)]
    await bridge.run_once()
    assert await redis.xlen(DLQ) == 1


async def test_malformed_task_of_another_orchestrator_is_logged_once(
    queue: Queue, redis: Client, redis_url: str
) -> None:
    side = foreign(queue, redis_url)
    await side.run_once()
    await redis.xadd(TASK, {"task_id": "order-1", "payload": "no JSON", "idempotency_key": "a"})
    await side.run_once()
    await side.run_once()
    assert await redis.xlen(DLQ) == 1
    log = await sql(queue, "select event_type, worker from event_log")
    assert [(row["event_type"], row["worker"]) for row in log] == [("task.dlq", "bridge:redis")]
    await side.context.redis.aclose()


@pytest.mark.requirement("R-047", "R-050")
async def test_event_log_contains_the_end_of_cancelled_and_rejected_tasks(streams: Queue) -> None:
    await streams.settings.set("guards", [{"type": "tool"}])
    rejected, cancelled = await submit(streams, "rejected"), await submit(streams, "cancelled")
    await streams.approvals.reject(rejected)
    await streams.cancel(cancelled, "not needed")
    log = await sql(
        streams, "select event_type, task_id, final from event_log where event_type = 'task.failed' order by id"
    )
    assert [(row["task_id"], bool(row["final"])) for row in log] == [(rejected, True), (cancelled, True)]
