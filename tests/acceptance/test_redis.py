"""The Redis Streams protocol v1.2.1 from top to bottom: in the streams, over HTTP and in the database."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shiftwork.compat.bridges.redis import fields
from tests.acceptance.redis import STANDS_AT, Protocol, served
from tests.bridges.loki.dot_loki import DotLoki, bridged
from tests.bridges.redis.streams import DLQ, RESULT, TASK, entries, pending
from tests.conformance.steps import sql
from tests.requirements.collect import ROOT

PAGE = ROOT / "docs" / "reference" / "redis-streams.md"


@pytest.fixture
async def protocol(store_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Protocol]:
    async with served(store_url, redis_url, monkeypatch) as server:
        yield server


def listed(heading: str) -> tuple[str, ...]:
    """The first column of the table under a heading of the protocol's page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| `")]
    return tuple(row.strip("`") for row in rows)


@pytest.mark.requirement("R-002")
def test_protocol_page_and_code_agree() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"v{fields.VERSION}" in text.splitlines()[0]
    assert listed("stream:task") == fields.TASK
    assert listed("stream:result") == fields.RESULT
    assert listed("stream:dlq") == (*fields.LETTER, fields.MARK)
    assert listed("Keys") == (*fields.Streams.under(""), fields.GROUP, fields.READERS)


@pytest.mark.requirement("R-001", "R-003", "R-004", "R-006")
async def test_orchestrator_writes_tasks_and_workers_write_results(protocol: Protocol) -> None:
    first, second = await protocol.create(), await protocol.create()
    one, two = await protocol.taken(first, "worker-1"), await protocol.taken(second, "worker-2")
    assert one[0] != two[0]
    await protocol.worker("worker-1").succeed(one, {"sent": 1})
    await protocol.worker("worker-2").succeed(two, {"sent": 2})
    await protocol.look()
    stated = await entries(protocol.redis, RESULT)
    assert [(each["task_id"], each["worker"]) for each in stated] == [
        (first["task_id"], "worker-1"), (second["task_id"], "worker-2"),
    ]  # fmt: skip
    found = [await protocol.get(task) for task in (first, second)]
    assert [(task["status"], task["result"]) for task in found] == [
        ("succeeded", {"sent": 1}), ("succeeded", {"sent": 2}),
    ]  # fmt: skip


@pytest.mark.requirement("R-007", "R-008", "R-009", "R-012")
async def test_succeeded_task_stays_succeeded(protocol: Protocol) -> None:
    task = await protocol.create()
    assert await protocol.status(task) == "queued"
    entry = await protocol.taken(task)
    assert (await protocol.get(task))["consumer"] == "worker-1"
    assert await protocol.status(task) == "running"
    await protocol.worker().succeed(entry)
    await protocol.look()
    await protocol.worker().fail(entry, "changed my mind")
    await protocol.look()
    assert await protocol.status(task) == "succeeded"
    assert (await protocol.logged(task)).count("task.succeeded") == 1
    assert "task.failed" not in await protocol.logged(task)


@pytest.mark.requirement("R-010")
async def test_finally_failed_task_stays_failed(protocol: Protocol) -> None:
    task = await protocol.create()
    await protocol.worker().fail(await protocol.taken(task), "no", retryable="false")
    await protocol.look()
    assert await protocol.status(task) == "failed"
    await protocol.pass_time(86_400)
    assert await protocol.status(task) == "failed"
    assert await protocol.redis.xlen(TASK) == 0


@pytest.mark.requirement("R-011", "R-054", "R-055", "R-056")
@pytest.mark.parametrize(("decision", "status"), [("approve", "queued"), ("reject", "failed")])
async def test_guarded_task_waits_for_approval(protocol: Protocol, decision: str, status: str) -> None:
    await protocol.api.call("PATCH", "/api/settings", {"set": {"guards": [{"type": "order"}]}})
    task = await protocol.create(type="order")
    assert await protocol.status(task) == "waiting_approval"
    assert await protocol.redis.xlen(TASK) == 0
    assert await protocol.logged(task) == ["task.created", "approval.requested"]
    await protocol.ask(f"POST /api/tasks/{task['task_id']}/{decision}", {"note": "seen"})
    await protocol.look()
    assert await protocol.status(task) == status
    assert await protocol.redis.xlen(TASK) == (decision == "approve")
    output = {"approve": "approval.approved", "reject": "approval.rejected"}[decision]
    assert output in await protocol.logged(task)


@pytest.mark.requirement("R-014", "R-015")
@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_entry_is_pending_from_delivery_to_acknowledgement(protocol: Protocol, outcome: str) -> None:
    task = await protocol.create()
    entry = await protocol.taken(task)
    assert (await pending(protocol.redis), await protocol.status(task)) == (1, "running")
    listed = await protocol.ask("GET /api/tasks?status=unacked")
    assert [found["task_id"] for found in listed["tasks"]] == [task["task_id"]]
    await protocol.worker().say(entry, outcome, error="e")
    await protocol.worker().acknowledge(entry)
    await protocol.look()
    assert await pending(protocol.redis) == 0


@pytest.mark.requirement("R-016", "R-017")
async def test_heartbeats_are_logged_and_not_written_to_the_stream(protocol: Protocol) -> None:
    task = await protocol.create()
    await protocol.taken(task)
    token = await protocol.token(task)
    lengths = [await protocol.redis.xlen(stream) for stream in (TASK, RESULT)]
    for _ in range(10):
        await protocol.api.pass_time(30)
        await protocol.api.post(f"/api/tasks/{task['task_id']}/heartbeat", {"token": token})
        await protocol.look()
    assert [await protocol.redis.xlen(stream) for stream in (TASK, RESULT)] == lengths
    assert (await protocol.logged(task)).count("task.heartbeat") == 10


@pytest.mark.requirement("R-019", "R-020", "R-026")
async def test_protocol_numbers_are_in_force(protocol: Protocol) -> None:
    found = {row["key"]: row["value"] for row in (await protocol.api.get("/api/settings"))["settings"]}
    assert (found["heartbeat_timeout_sec"], found["heartbeat_interval_sec"], found["max_attempts"]) == (300, 30, 4)


@pytest.mark.requirement("R-018", "R-021", "R-024", "R-025", "R-052")
async def test_pending_task_is_reclaimed_and_the_log_names_both_consumers(
    protocol: Protocol,
) -> None:
    task = await protocol.create()
    entry = await protocol.taken(task, "worker-1")
    await protocol.worker("worker-1").idle_for(entry, 290)
    await protocol.look()
    assert (await protocol.get(task))["consumer"] == "worker-1"
    await protocol.worker("worker-1").idle_for(entry, 300)
    await protocol.look()
    again = await protocol.taken(task, "worker-2")
    (reclaimed,) = [row for row in await protocol.event_log(task) if row["event_type"] == "task.reclaimed"]
    assert json.loads(reclaimed["data"]) == {
        "original_consumer": "worker-1", "new_consumer": "worker-2", "message_id": again[0],
    }  # fmt: skip
    assert (await protocol.get(task))["retry_count"] == 0


@pytest.mark.requirement("R-027", "R-028", "R-029", "R-034")
async def test_retry_count_grows_and_retries_wait_one_five_and_fifteen_minutes(protocol: Protocol) -> None:
    task = await protocol.create()
    for number, delay in enumerate((60, 300, 900), start=1):
        await protocol.fail(task, "boom")
        assert (await protocol.get(task))["retry_count"] == number
        await protocol.pass_time(delay - 1)
        assert await protocol.redis.xlen(TASK) == 0
        await protocol.pass_time(5)
        (entry,) = await entries(protocol.redis, TASK)
        assert entry["retry_count"] == str(number)


@pytest.mark.requirement("R-030", "R-033")
async def test_every_task_has_a_key_and_a_key_has_one_task(protocol: Protocol) -> None:
    reply = await protocol.api.call("POST", "/api/tasks", {"tool_name": "send_mail"})
    assert (reply.status, reply.code) == (422, "idempotency_key_required")
    first = await protocol.create(idempotency_key="once")
    second = await protocol.create(idempotency_key="once")
    assert first["task_id"] == second["task_id"]
    assert await protocol.redis.xlen(TASK) == 1


async def exhaust(protocol: Protocol, task: dict[str, Any]) -> None:
    for number, delay in enumerate((60, 300, 900, 0), start=1):
        await protocol.fail(task, f"boom {number}")
        await protocol.pass_time(delay + 5)


@pytest.mark.requirement("R-005", "R-034", "R-036", "R-037", "R-038", "R-039", "R-040", "R-041", "R-042", "R-043")
async def test_failure_after_the_last_retry_is_dead_lettered(protocol: Protocol) -> None:
    task = await protocol.create()
    await exhaust(protocol, task)
    (letter,) = await entries(protocol.redis, DLQ)
    assert (letter["task_id"], letter["tool_name"]) == (task["task_id"], "send_mail")
    assert (json.loads(letter["payload"]), letter["error"], letter["retry_count"]) == ({"to": "ada"}, "boom 4", "4")
    failed_at = datetime.fromisoformat(letter["failed_at"]).timestamp()
    assert 0 < failed_at - STANDS_AT < 60 + 300 + 900 + 20
    assert (await protocol.logged(task))[-1] == "task.dlq"


@pytest.mark.requirement("R-035")
async def test_invalid_input_is_dead_lettered_without_retry(protocol: Protocol) -> None:
    task = await protocol.create()
    entry = await protocol.taken(task)
    report = {"task_id": task["task_id"], "tool_name": "send_mail", "payload": entry[1]["payload"], "retry_count": "0"}
    await protocol.redis.xadd(DLQ, {**report, "error": "missing required field: subject", "failed_at": "now"})
    await protocol.worker().acknowledge(entry)
    await protocol.look()
    assert await protocol.status(task) == "failed"
    (letter,) = await entries(protocol.redis, DLQ)
    assert letter["error"] == "missing required field: subject"
    assert await protocol.logged(task) == ["task.created", "task.claimed", "task.failed", "task.dlq"]


@pytest.mark.requirement("R-044", "R-045")
async def test_replay_tool_retries_with_changed_payload(
    protocol: Protocol, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = await protocol.create()
    await protocol.worker().fail(await protocol.taken(task), "no such customer", retryable="false")
    await protocol.look()
    payload = json.dumps({"to": "grace"})
    await run_command(store_url, "dlq", "replay", task["task_id"], "--payload", payload)
    await protocol.look()
    entry = await protocol.taken(task)
    assert json.loads(entry[1]["payload"]) == {"to": "grace"}
    await protocol.worker().succeed(entry)
    await protocol.look()
    assert await protocol.status(task) == "succeeded"


@pytest.mark.requirement("R-044", "R-046")
async def test_replay_tool_marks_as_abandoned(protocol: Protocol, store_url: str) -> None:
    task = await protocol.create()
    await protocol.worker().fail(await protocol.taken(task), "no such customer", retryable="false")
    await protocol.look()
    await run_command(store_url, "dlq", "abandon", task["task_id"], "--note", "gone")
    await protocol.pass_time(3600)
    letters = (await protocol.ask("GET /api/dead-letters?reviewed_too=true"))["dead_letters"]
    assert [(letter["task_id"], letter["resolution"]) for letter in letters] == [(task["task_id"], "abandon")]
    assert await protocol.redis.xlen(TASK) == 0


async def run_command(store_url: str, *words: str) -> None:
    """A command of the program, in a process of its own."""
    command = [sys.executable, "-m", "shiftwork", "--store", store_url, *words]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.requirement("R-047", "R-048", "R-049", "R-050", "R-051", "R-053")
async def test_key_events_are_stored_in_event_log(protocol: Protocol) -> None:
    task = await protocol.create()
    await protocol.fail(task, "boom")
    await protocol.pass_time(65)
    await protocol.worker("worker-2").succeed(await protocol.taken(task, "worker-2"))
    await protocol.look()
    log = await protocol.event_log(task)
    assert [(row["event_type"], row["worker"]) for row in log if row["event_type"] != "task.created"] == [
        ("task.claimed", "worker-1"), ("task.failed", "worker-1"), ("task.claimed", "worker-2"),
        ("task.succeeded", "worker-2"),
    ]  # fmt: skip
    assert log[0]["event_type"] == "task.created"
    assert [bool(row["final"]) for row in log if row["event_type"] == "task.failed"] == [False]


@pytest.mark.requirement("R-057")
async def test_criterion_1_created_claimed_succeeded_and_nothing_pending(protocol: Protocol) -> None:
    task = await protocol.create()
    await protocol.worker().succeed(await protocol.taken(task))
    await protocol.look()
    assert await protocol.logged(task) == ["task.created", "task.claimed", "task.succeeded"]
    assert await pending(protocol.redis) == 0


@pytest.mark.requirement("R-058")
async def test_criterion_2_three_retries_then_dead_letter_with_complete_log(protocol: Protocol) -> None:
    task = await protocol.create()
    await exhaust(protocol, task)
    assert await protocol.logged(task) == ["task.created", *["task.claimed", "task.failed"] * 4, "task.dlq"]
    log = [row for row in await protocol.event_log(task) if row["event_type"] == "task.failed"]
    assert [bool(row["final"]) for row in log] == [False, False, False, True]
    assert [letter["task_id"] for letter in await entries(protocol.redis, DLQ)] == [task["task_id"]]


@pytest.mark.requirement("R-059")
async def test_criterion_3_entry_of_a_killed_worker_is_reclaimed_and_completed(
    protocol: Protocol, redis_url: str
) -> None:
    """The worker is a separate process and is killed; its successor has the same name."""
    task = await protocol.create()
    command = [sys.executable, "-m", "tests.acceptance.redis_worker", redis_url, "worker-1"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        message_id = (await process.stdout.readline()).decode().strip()
        await protocol.look()
        assert await protocol.status(task) == "running"
    finally:
        process.kill()
        await process.wait()
    again = protocol.worker("worker-1")
    assert await again.read() == []
    await again.idle_for((message_id, {}), 300)
    await protocol.look()
    await again.succeed(await protocol.taken(task, "worker-1"))
    await protocol.look()
    assert await protocol.status(task) == "succeeded"
    assert (await protocol.logged(task)).count("task.reclaimed") == 1
    assert await pending(protocol.redis) == 0


@pytest.mark.requirement("R-013", "R-031", "R-032", "R-060")
async def test_criterion_4_external_effect_of_one_key_happens_once(protocol: Protocol) -> None:
    """The first worker sends the mail, reports it to the queue, and dies before it writes its result."""
    task, mails = await protocol.create(idempotency_key="mail-7"), []

    async def send_once(worker: str) -> str:
        path, claim = f"/api/tasks/{task['task_id']}/effects", {"token": await protocol.token(task), "key": "mail-7"}
        begun = await protocol.api.post(f"{path}/begin", claim)
        if begun["status"] == "new":
            mails.append(worker)
            await protocol.api.post(f"{path}/finish", {**claim, "result": "sent"})
        return str(begun["status"])

    entry = await protocol.taken(task, "worker-1")
    assert await send_once("worker-1") == "new"
    await protocol.worker("worker-1").idle_for(entry, 300)
    await protocol.look()
    again = await protocol.taken(task, "worker-2")
    assert await send_once("worker-2") == "done"
    await protocol.worker("worker-2").succeed(again)
    await protocol.look()
    assert (mails, await protocol.status(task)) == (["worker-1"], "succeeded")


VIEWS = {
    "redis": ("succeeded", "failed", "running", "queued"),
    "aegis": ("completed", "failed", "running", "queued"),
    "loki": ("completed", "dead-letter", "in-progress", "pending"),
    "factory": ("COMPLETED", "DEAD_LETTERED", "RUNNING", "READY"),
    "coscientist": ("Completed", "Failed", "Executing", "Pending"),
}


@pytest.mark.requirement("C-112")
async def test_streams_files_views_and_database_agree_at_rest(protocol: Protocol, tmp_path: Path) -> None:
    tasks = [await protocol.create() for _ in range(8)]
    for number, entry in enumerate(await protocol.worker().read(6)):
        assert entry[1]["task_id"] == tasks[number]["task_id"]
        if number % 3 == 0:
            await protocol.worker().succeed(entry)
        elif number % 3 == 1:
            await protocol.worker().fail(entry, "no", retryable="false")
    await protocol.look()
    counted = await sql(protocol.queue, "select status, count(*) as n from tasks group by status")
    assert {row["status"]: row["n"] for row in counted} == {
        "completed": 2, "dead_lettered": 2, "running": 2, "ready": 2,
    }  # fmt: skip
    lengths = await protocol.redis.xlen(TASK), await protocol.redis.xlen(DLQ)
    assert (await pending(protocol.redis), *lengths) == (2, 4, 2)
    for view, names in VIEWS.items():
        page = await protocol.api.get(f"/api/tasks?view={view}")
        found = [task["status"] for task in page["tasks"]]
        assert [found.count(name) for name in names] == [2, 2, 2, 2], (view, found)
    folder = DotLoki(tmp_path)
    await (await bridged(protocol.queue, folder)).run_until_stable()
    assert [len(folder.tasks(name)) for name in VIEWS["loki"]] == [2, 2, 2, 2]
