"""The Loki task from its schema through claim and completion, with the names of its document."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from shiftwork import Queue, views
from shiftwork.model.errors import ShiftworkError
from shiftwork.testing import MovedClock
from tests.conformance.steps import dead_letter, finish, take, viewed

PAYLOAD = {
    "action": "implement",
    "target": "src/auth/login.ts",
    "params": {"deep": {"er": [1, 2]}},
    "goal": "users can log in",
    "constraints": ["No third-party deps", "Maintain backwards compat"],
    "context": {
        "relatedFiles": ["file1.ts", "file2.ts"],
        "architectureDecisions": ["ADR-001: Use JWT tokens"],
        "previousAttempts": "tried sessions, failed on two hosts",
    },
}


async def enqueue(loki: Queue, **fields: Any) -> str:
    made = await loki.submit(views.get("loki").task_in({"type": "eng-backend", **fields}))
    return made.id


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.requirement("L-002", "L-017", "L-018", "L-019", "L-021", "L-024", "L-025")
async def test_new_task_has_the_fields_of_the_schema(loki: Queue, clock: MovedClock) -> None:
    first = await viewed(loki, "loki", await enqueue(loki, payload={"n": 1}))
    second = await viewed(loki, "loki", await enqueue(loki, payload={"n": 2}))
    assert uuid.UUID(first["id"]) != uuid.UUID(second["id"])
    assert first["createdAt"] == iso(clock())
    assert first["status"] == "pending"
    assert first["retries"] == 0
    for name in ("claimedBy", "claimedAt", "lastError", "completedAt"):
        assert first[name] is None


@pytest.mark.requirement("L-020", "L-022", "L-023")
async def test_omitted_fields_have_schema_defaults(loki: Queue) -> None:
    plain = await viewed(loki, "loki", await enqueue(loki))
    assert (plain["timeout"], plain["maxRetries"], plain["backoffSeconds"]) == (3600, 3, 60)
    own = await enqueue(loki, payload={"n": 1}, timeout=60, maxRetries=5, backoffSeconds=5)
    stated = await viewed(loki, "loki", own)
    assert (stated["timeout"], stated["maxRetries"], stated["backoffSeconds"]) == (60, 5, 5)


@pytest.mark.requirement("L-007", "L-008", "L-009", "L-010", "L-011", "L-012", "L-013", "L-014", "L-015", "L-016")
async def test_payload_is_returned_as_sent(loki: Queue) -> None:
    task_id = await enqueue(loki, payload=PAYLOAD)
    assert (await viewed(loki, "loki", task_id))["payload"] == PAYLOAD
    assert (await take(loki)).payload == PAYLOAD
    for action in ("test", "deploy", "paint"):
        other = await enqueue(loki, payload={"action": action, "params": {}})
        assert (await viewed(loki, "loki", other))["payload"] == {"action": action, "params": {}}


@pytest.mark.requirement("L-004")
async def test_any_task_type_is_accepted(loki: Queue) -> None:
    for number, type_ in enumerate(("eng-backend", "eng-frontend", "ops-devops", "my-own")):
        task_id = (await loki.submit(type=type_, payload={"n": number})).id
        assert (await loki.get(task_id)).type == type_


@pytest.mark.requirement("L-038", "L-042", "L-043")
async def test_agent_claims_only_types_of_its_capabilities(loki: Queue) -> None:
    backend = await enqueue(loki, payload={"n": 1}, priority=10)
    frontend = (await loki.submit(type="eng-frontend", payload={"n": 2}, priority=90)).id
    devops = (await loki.submit(type="ops-devops", payload={"n": 3})).id
    assert [a.id for a in await loki.claim("ui", 5, types=["eng-frontend"])] == [frontend]
    both = await loki.claim("a1", 5, types=["eng-backend", "ops-devops"])
    assert [assignment.id for assignment in both] == [backend, devops]


@pytest.mark.requirement("L-048", "L-049", "L-050", "L-051")
async def test_claimed_task_is_in_progress_and_names_its_agent(loki: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(loki, payload=PAYLOAD)
    clock.advance(5)
    (assignment,) = await loki.claim("a1")
    assert (assignment.id, assignment.task().payload) == (task_id, PAYLOAD)
    task = await viewed(loki, "loki", task_id)
    assert (task["status"], task["claimedBy"], task["claimedAt"]) == ("in-progress", "a1", iso(clock()))


@pytest.mark.requirement("L-040", "L-052")
async def test_claim_is_empty_when_nothing_is_pending(loki: Queue) -> None:
    assert await loki.claim("a1") == []
    await enqueue(loki, payload={"n": 1})
    await finish(loki)
    await dead_letter(loki, payload={"n": 2})
    await loki.cancel(await enqueue(loki, payload={"n": 3}))
    await enqueue(loki, payload={"n": 4})
    await take(loki)
    assert await loki.claim("a1") == []


@pytest.mark.requirement("L-026", "L-027", "L-028", "L-029", "L-062", "L-065", "L-066", "L-067")
async def test_result_is_kept_with_the_completed_task(loki: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(loki)
    token = (await take(loki)).token
    clock.advance(7)
    report = {"what": "JWT", "why": "no sessions"}
    await loki.complete(token, "login works", decision_report=report)
    task = await viewed(loki, "loki", task_id)
    assert (task["status"], task["completedAt"]) == ("completed", iso(clock()))
    assert task["result"] == {"status": "success", "output": "login works", "decisionReport": report}


@pytest.mark.requirement("L-027", "L-065", "L-066")
async def test_failed_result_is_kept_with_the_task(loki: Queue, clock: MovedClock) -> None:
    task_id = await enqueue(loki, maxRetries=1)
    await loki.fail((await take(loki)).token, "crash", "no database", data="half of it")
    task = await viewed(loki, "loki", task_id)
    assert (task["status"], task["completedAt"], task["lastError"]) == ("dead-letter", iso(clock()), "no database")
    assert (task["result"]["status"], task["result"]["output"]) == ("failed", "half of it")


@pytest.mark.requirement("L-064")
async def test_only_task_in_progress_can_be_completed(loki: Queue) -> None:
    task_id = await enqueue(loki)
    with pytest.raises(ShiftworkError):
        await loki.complete(f"{task_id}.0")
    token = (await take(loki)).token
    await loki.cancel(task_id)
    with pytest.raises(ShiftworkError):
        await loki.complete(token)
    assert (await loki.get(task_id)).status == "cancelled"
