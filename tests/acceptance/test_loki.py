"""The Loki document from its first section to idempotency, cancellation and priorities, over HTTP, with its names.

Circuit breakers and rate limits are in test_loki_protection.py, its files in test_loki_folder.py.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.acceptance.loki import REPORT, STANDS_AT, Loki, served
from tests.acceptance.test_loki_protection import at
from tests.bridges.loki.dot_loki import QUEUES

# Word for word as the document has it, but for the ids, the times and the type, which it leaves open.
PAYLOAD = {
    "action": "implement",
    "target": "file/path or resource",
    "params": {},
    "goal": "What success looks like (high-level objective)",
    "constraints": ["No third-party deps", "Maintain backwards compat"],
    "context": {
        "relatedFiles": ["file1.ts", "file2.ts"],
        "architectureDecisions": ["ADR-001: Use JWT tokens"],
        "previousAttempts": "What was tried before, why it failed",
    },
}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
async def loki(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loki]:
    async with served(store_url, monkeypatch) as server:
        yield server


async def get(loki: Loki, task: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = await loki.ask(f"GET /api/tasks/{task['id']}")
    return found


async def listed(loki: Loki, task: dict[str, Any]) -> list[str]:
    """The document's queues that list a task."""
    found = []
    for queue in QUEUES:
        tasks = (await loki.ask(f"GET /api/tasks?status={queue}"))["tasks"]
        found += [queue for each in tasks if each["id"] == task["id"]]
    return found


async def refused(loki: Loki, path: str, body: dict[str, Any]) -> str:
    reply = await loki.api.call("POST", f"{path}?workspace=loki", body)
    assert reply.status >= 400, reply
    return str(reply.code)


@pytest.mark.requirement(
    "L-002", "L-003", "L-004", "L-005", "L-006", "L-007", "L-008", "L-009", "L-010", "L-011", "L-012", "L-013",
    "L-014", "L-015", "L-016", "L-017", "L-018", "L-019", "L-020", "L-021", "L-022", "L-023", "L-024", "L-025",
)  # fmt: skip
async def test_task_schema_has_documented_fields_and_defaults(loki: Loki) -> None:
    first, second = await loki.enqueue(), await loki.enqueue("a-type-of-my-own")
    task = await loki.enqueue("ops-devops", priority=9, dependencies=[first["id"], second["id"]], payload=PAYLOAD)
    assert UUID.fullmatch(task["id"])
    assert re.fullmatch(r"[0-9a-f]{64}", task["idempotencyKey"])
    assert (task["type"], task["priority"], second["type"]) == ("ops-devops", 9, "a-type-of-my-own")
    assert sorted(task["dependencies"]) == sorted([first["id"], second["id"]])
    assert (task["payload"], task["createdAt"]) == (PAYLOAD, at(0))
    assert (task["timeout"], task["retries"], task["maxRetries"], task["backoffSeconds"]) == (3600, 0, 3, 60)
    for name in ("claimedBy", "claimedAt", "lastError", "completedAt"):
        assert task[name] is None, name
    other = await loki.enqueue(timeout=90, maxRetries=5, backoffSeconds=7)
    assert (other["timeout"], other["maxRetries"], other["backoffSeconds"]) == (90, 5, 7)


@pytest.mark.requirement("L-018", "L-019", "L-025", "L-026", "L-027", "L-028", "L-029")
async def test_claim_and_completion_fields_are_null_until_set(loki: Loki) -> None:
    await loki.enqueue()
    await loki.pass_time(5)
    task = await loki.claim("a1")
    assert (task["claimedBy"], task["claimedAt"], task["completedAt"]) == ("a1", at(5), None)
    await loki.pass_time(5)
    done = await loki.complete(task)
    assert done["completedAt"] == at(10)
    assert done["result"] == {"status": "success", "output": "done", "decisionReport": REPORT}


@pytest.mark.requirement("L-030", "L-031")
@pytest.mark.parametrize("report", [None, {}])
async def test_decision_report_is_required(loki: Loki, report: Any) -> None:
    await loki.enqueue()
    task = await loki.claim("a1")
    body = {"agent_id": "a1", "output": "done", **({} if report is None else {"decisionReport": report})}
    assert await refused(loki, f"/api/tasks/{task['id']}/complete", body) == "report_required"
    assert ((await get(loki, task))["incomplete"], await listed(loki, task)) == (True, ["in-progress"])
    await loki.complete(task)
    assert ((await get(loki, task))["incomplete"], await listed(loki, task)) == (False, ["completed"])


@pytest.mark.requirement("L-038", "L-040", "L-041", "L-042", "L-043", "L-050", "L-051", "L-052")
async def test_claim_task_returns_the_highest_priority_matching_task(loki: Loki) -> None:
    assert await loki.claim("a1", "eng-backend") is None
    three, nine, five = [await loki.enqueue(priority=priority) for priority in (3, 9, 5)]
    await loki.enqueue("eng-frontend", priority=10)
    got = [await loki.claim("a1", "eng-backend", "ops-devops") for _ in range(4)]
    assert [task and task["id"] for task in got] == [nine["id"], five["id"], three["id"], None]
    assert await listed(loki, nine) == ["in-progress"]


@pytest.mark.requirement("L-044", "L-045")
async def test_expired_claim_is_eligible_again(loki: Loki) -> None:
    task = await loki.enqueue()
    await loki.claim("a1")
    await loki.pass_time(3599)
    assert await loki.claim("a2") is None
    await loki.pass_time(2)
    again = await loki.claim("a2")
    assert (again["id"], again["claimedBy"], again["retries"]) == (task["id"], "a2", 0)


@pytest.mark.requirement("L-046", "L-069")
async def test_task_is_claimable_when_all_dependencies_are_completed(loki: Loki) -> None:
    first, second = await loki.enqueue(), await loki.enqueue()
    third = await loki.enqueue(priority=10, dependencies=[first["id"], second["id"]])
    for parent in (first, second):
        claimed = await loki.claim()
        assert claimed["id"] == parent["id"]
        assert await loki.claim("other", "nothing") is None
        await loki.complete(claimed)
    assert (await loki.claim())["id"] == third["id"]


@pytest.mark.requirement("L-039", "L-056")
async def test_concurrent_claims_get_different_tasks(loki: Loki) -> None:
    for _ in range(20):
        await loki.enqueue()
    got = await asyncio.gather(*(loki.claim(f"a{number}") for number in range(30)))
    taken = [task["id"] for task in got if task is not None]
    assert (len(taken), len(set(taken))) == (20, 20)


@pytest.mark.requirement("L-062", "L-064", "L-065", "L-066", "L-067")
async def test_complete_task_stores_result_and_requires_a_claim(loki: Loki) -> None:
    task = await loki.enqueue()
    body = {"agent_id": "a1", "output": "done", "decisionReport": REPORT}
    assert await refused(loki, f"/api/tasks/{task['id']}/complete", body) == "wrong_state"
    claimed = await loki.claim("a1")
    await loki.pass_time(7)
    done = await loki.complete(claimed)
    assert (done["status"], done["completedAt"], done["result"]["output"]) == ("completed", at(7), "done")
    assert await listed(loki, task) == ["completed"]


@pytest.mark.requirement("L-063")
async def test_two_concurrent_completions_have_one_effect(loki: Loki) -> None:
    await loki.enqueue()
    task = await loki.claim("a1")
    both = await asyncio.gather(loki.complete(task), loki.complete(task))
    assert [each["status"] for each in both] == ["completed", "completed"]
    events = (await loki.read(f"/api/events?task={task['id']}&name=task.completed"))["events"]
    assert len(events) == 1


@pytest.mark.requirement("L-065", "L-066", "L-070")
async def test_failed_result_is_handled_as_a_failure_with_its_output(loki: Loki) -> None:
    await loki.enqueue()
    task = await loki.claim("a1")
    after = await loki.fail(task, "no database", data="half of it")
    assert (after["status"], after["completedAt"], after["result"]["output"]) == ("pending", at(0), "half of it")


@pytest.mark.requirement("L-071", "L-072", "L-073", "L-075", "L-076", "L-077", "L-078", "L-079", "L-080")
async def test_failures_are_retried_with_exponential_backoff_then_dead_lettered(
    loki: Loki, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shiftwork")
    task = await loki.enqueue(maxRetries=4)
    for retry, backoff in ((1, 60), (2, 120), (3, 240)):
        after = await loki.fail(await loki.claim(f"a{retry}"), f"error {retry}", agent=f"a{retry}")
        until = datetime.fromisoformat(after["availableAt"]).timestamp() - STANDS_AT - await loki.now()
        assert (after["status"], after["retries"], after["lastError"]) == ("pending", retry, f"error {retry}")
        assert (round(until, 3), after["claimedBy"], after["claimedAt"]) == (backoff, None, None)
        assert f"Task {task['id']} retry {retry}, backoff {backoff}s" in caplog.messages
        await loki.pass_time(backoff - 1)
        assert await loki.claim("other") is None
        await loki.pass_time(6)  # retries are looked for every five seconds
    assert not [message for message in await loki.alerts() if "dead letter" in message]
    after = await loki.fail(await loki.claim(), "error 4")
    assert (after["status"], after["retries"], await listed(loki, task)) == ("dead-letter", 4, ["dead-letter"])
    assert f"Task {task['id']} moved to dead letter queue" in await loki.alerts()


async def letters(loki: Loki) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await loki.ask("GET /api/dead-letters"))["dead_letters"]
    return found


async def review(loki: Loki, task_id: str, decision: str, **fields: Any) -> Any:
    return await loki.ask(f"POST /api/dead-letters/{task_id}/review", {"decision": decision, **fields})


@pytest.mark.requirement("L-081", "L-082", "L-083")
async def test_dead_letters_keep_their_failures_and_await_review(loki: Loki) -> None:
    task = await loki.enqueue(maxRetries=2)
    for error in ("first", "second"):
        await loki.fail(await loki.claim(), error)
        await loki.pass_time(70)
    (letter,) = await letters(loki)
    assert (letter["id"], letter["lastError"], letter["retries"]) == (task["id"], "second", 2)
    assert [failed["error"] for failed in letter["failureHistory"]] == ["first", "second"]
    await loki.pass_time(30 * 86_400)
    assert (await letters(loki), await loki.claim()) == ([letter], None)


@pytest.mark.requirement("L-084", "L-085", "L-086", "L-087", "L-088")
async def test_all_four_review_outcomes_are_applied(loki: Loki) -> None:
    await loki.dead_letter(4)
    invalid, bug, down, human = [letter["id"] for letter in await letters(loki)]
    await review(loki, invalid, "delete", note="invalid")
    await review(loki, bug, "retry", note="the agent is fixed")
    await review(loki, down, "wait+retry", at=STANDS_AT + 600)
    await review(loki, human, "escalate", note="who decides?")
    assert [letter["id"] for letter in await letters(loki)] == [human]
    assert any("escalated" in message for message in await loki.alerts())
    back = await loki.ask(f"GET /api/tasks/{bug}")
    assert (back["status"], back["retries"]) == ("pending", 0)
    assert ((await loki.claim())["id"], await loki.claim()) == (bug, None)
    await loki.pass_time(606)
    assert (await loki.claim())["id"] == down
    (decided,) = (await loki.read(f"/api/dead-letters/{bug}/reviews"))["items"]
    assert (decided["decision"], decided["note"]) == ("retry", "the agent is fixed")


@pytest.mark.requirement("L-090", "L-091", "L-092", "L-093", "L-094", "L-095")
async def test_enqueue_task_detects_duplicates_by_payload(loki: Loki, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "shiftwork")
    task = await loki.enqueue(payload={"a": 1, "b": [2]})
    key = task["idempotencyKey"]
    again = await loki.enqueue("ops-devops", priority=1, payload={"b": [2], "a": 1})
    assert (again["id"], again["idempotencyKey"]) == (task["id"], key)
    assert f"Duplicate task detected: {key}" in caplog.messages
    claimed = await loki.claim()
    assert (await loki.enqueue(payload={"a": 1, "b": [2]}))["id"] == task["id"]
    await loki.complete(claimed)
    assert (await loki.enqueue(payload={"a": 1, "b": [2]}))["id"] == task["id"]
    other = await loki.enqueue(payload={"c": 3})
    await loki.ask(f"POST /api/tasks/{other['id']}/cancel", {"reason": "obsolete"})
    assert (await loki.enqueue(payload={"c": 3}))["id"] != other["id"]


@pytest.mark.requirement("L-096", "L-098", "L-099", "L-100", "L-101", "L-102", "L-103")
async def test_cancel_task_cancels_its_dependents(loki: Loki) -> None:
    a = await loki.enqueue()
    b = await loki.enqueue(dependencies=[a["id"]])
    c = await loki.enqueue(dependencies=[b["id"]])
    held = await loki.enqueue("eng-frontend")
    await loki.claim("a1", "eng-frontend")
    await loki.pass_time(3)
    for task in (a, held):
        gone = await loki.ask(f"POST /api/tasks/{task['id']}/cancel", {"reason": "obsolete"})
        assert (gone["status"], gone["cancelReason"], gone["cancelledAt"]) == ("cancelled", "obsolete", at(3))
        assert await listed(loki, task) == ["cancelled"]
    assert (await get(loki, b))["cancelReason"] == f"Parent {a['id']} cancelled"
    assert (await get(loki, c))["cancelReason"] == f"Parent {b['id']} cancelled"


@pytest.mark.requirement("L-098", "L-104")
async def test_ended_task_cannot_be_cancelled(loki: Loki) -> None:
    done = await loki.enqueue()
    await loki.complete(await loki.claim())
    await loki.dead_letter(1)
    (dead,) = await letters(loki)
    for task_id in (done["id"], dead["id"]):
        assert await refused(loki, f"/api/tasks/{task_id}/cancel", {}) == "wrong_state"
    assert await refused(loki, "/api/tasks/00000000-0000-4000-8000-000000000000/cancel", {}) == "not_found"


@pytest.mark.requirement("L-097")
async def test_concurrent_cancel_and_claim_have_one_outcome(loki: Loki) -> None:
    for _ in range(5):
        task = await loki.enqueue()
        _, claimed = await asyncio.gather(loki.ask(f"POST /api/tasks/{task['id']}/cancel", {}), loki.claim("a1"))
        assert (await get(loki, task))["status"] == "cancelled"
        if claimed is not None:
            body = {"agent_id": "a1", "output": "done", "decisionReport": REPORT}
            assert await refused(loki, f"/api/tasks/{task['id']}/complete", body) in {"lease_lost", "wrong_state"}


@pytest.mark.requirement("L-145", "L-146", "L-147", "L-148", "L-149", "L-150")
async def test_priorities_have_documented_tiers_and_order(loki: Loki) -> None:
    tiers = {n: (await loki.enqueue(priority=n))["priorityTier"] for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}
    named = ["background"] * 2 + ["low"] * 2 + ["normal"] * 3 + ["high"] * 2 + ["critical"]
    assert list(tiers.values()) == named
    await loki.pass_time(3000)  # nothing ages
    await loki.enqueue(priority=10)
    assert [(await loki.claim())["priority"] for _ in range(11)] == [10, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("priority", [0, 11, "high", True])
async def test_priority_out_of_range_is_refused(loki: Loki, priority: Any) -> None:
    body = {"type": "eng-backend", "payload": {}, "priority": priority}
    assert await refused(loki, "/api/tasks", body) == "invalid_input"
