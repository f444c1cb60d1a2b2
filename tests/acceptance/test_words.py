"""A client that knows only one document, with its records and names, against a server in that profile."""

from __future__ import annotations

import pytest

from tests.acceptance.coscientist import served as coscientist_served
from tests.acceptance.factory import served as factory_served
from tests.acceptance.loki import STANDS_AT
from tests.acceptance.loki import served as loki_served


@pytest.mark.requirement("L-038", "L-042", "L-043")
async def test_loki_agent_capabilities_are_the_types_it_takes(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with loki_served(store_url, monkeypatch) as loki:
        await loki.ask("POST /api/agents", {"agent_id": "a1", "agent_capabilities": ["eng-frontend"]})
        urgent, other = await loki.enqueue("eng-backend", priority=10), await loki.enqueue("eng-frontend", priority=1)
        assert (await loki.claim("a1"))["id"] == other["id"]
        assert await loki.claim("a1") is None
        body = {"agent_id": "a2", "agent_capabilities": ["ops-devops"]}
        assert (await loki.ask("POST /api/tasks/claim", body))["task"] is None
        body = {"agent_id": "a2", "agent_capabilities": ["eng-backend", "ops-devops"]}
        assert (await loki.ask("POST /api/tasks/claim", body))["task"]["id"] == urgent["id"]


@pytest.mark.requirement("L-065", "L-070")
async def test_loki_result_is_accepted_as_documented(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with loki_served(store_url, monkeypatch) as loki:
        report = {"decision": "JWT"}
        for stated in (
            {"result": {"status": "success", "output": "built", "decisionReport": report}},
            {"status": "success", "output": "built", "decisionReport": report},
            {"result": {"output": "built", "decisionReport": report}, "success": True},
        ):
            task = await loki.enqueue()
            await loki.claim("a1")
            done = await loki.ask(f"POST /api/tasks/{task['id']}/complete", stated)
            expected = {"status": "success", "output": "built", "decisionReport": report}
            assert (done["status"], done["result"]) == ("completed", expected)
        task = await loki.enqueue()
        await loki.claim("a1")
        body = {"result": {"status": "failed", "output": "half"}, "success": False, "lastError": "no database"}
        failed = await loki.ask(f"POST /api/tasks/{task['id']}/complete", body)
        assert (failed["status"], failed["retries"], failed["lastError"]) == ("pending", 1, "no database")
        assert failed["result"]["output"] == "half"


async def test_times_and_ids_use_the_document_format_everywhere(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loki_served(store_url, monkeypatch) as loki:
        await loki.enqueue(id="mine", maxRetries=1)
        await loki.fail(await loki.claim("a1"))
        (letter,) = (await loki.ask("GET /api/dead-letters"))["dead_letters"]
        assert letter["id"] == "mine"
        (alert,) = [each for each in (await loki.ask("GET /api/alerts"))["alerts"] if each["task_id"]]
        assert (alert["task_id"], alert["message"]) == ("mine", "Task mine moved to dead letter queue")
        assert alert["at"].startswith("2026-09-21T14:13:20")
        body = {"decision": "wait, retry", "at": "2026-09-21T14:23:20Z"}
        after = await loki.ask("POST /api/dead-letters/mine/review", body)
        assert (after["id"], after["status"]) == ("mine", "pending")
        assert after["availableAt"].startswith("2026-09-21T14:23:20"), STANDS_AT
        events = (await loki.ask("GET /api/events?task=mine"))["events"]
        assert {event["task_id"] for event in events} == {"mine"}


@pytest.mark.requirement("C-045", "C-064")
async def test_worker_is_matched_by_its_registration_and_reports_a_task_result(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coscientist_served(store_url, monkeypatch) as queue:
        await queue.register("w1", capabilities=["Generation"])
        await queue.submit("High", id="rank-1")
        made = await queue.submit("Low", id="gen-1", agent_type="Generation")
        assignment = await queue.take("w1")
        assert assignment["task"]["id"] == made["id"] == "gen-1"
        result = {"task_id": "gen-1", "status": "Completed", "result": {"h": 1}, "error": None, "worker_id": "w1"}
        stated = {**result, "execution_time": 3, "completed_at": "2026-09-21T14:13:20Z"}
        assert (await queue.report(assignment, "complete", **stated))["status"] == "Completed"
        assert (await queue.result(made))["result"] == {"h": 1}
        await queue.register("w2", capabilities=["Ranking"])
        assignment = await queue.take("w2")
        failed = await queue.report(assignment, "complete", task_id="rank-1", status="Failed", error="Network errors")
        assert (failed["status"], failed["error"]) == ("Retrying", "Network errors")


async def test_refusal_names_the_item_and_the_document_field(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coscientist_served(store_url, monkeypatch) as queue:
        batch = [queue.task("High", id="one"), queue.task("Urgent", id="two")]
        reply = await queue.call("POST /api/tasks", batch)
        assert (reply.status, reply.json["where"]) == (422, "tasks[1].priority")
        assert reply.json["facts"]["item_id"] == "two"
        missing = await queue.call("POST /api/tasks", {"priority": "High"})
        assert missing.json["where"] == "agent_type"
        circle = [queue.task("High", id="a", dependencies=["b"]), queue.task("High", id="b", dependencies=["a"])]
        reply = await queue.call("POST /api/tasks", circle)
        assert (reply.code, set(reply.json["facts"]["cycle"])) == ("circular_dependency", {"a", "b"})


async def test_task_joins_its_named_dag_and_read_only_changes_are_refused(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with factory_served(store_url, monkeypatch) as factory:
        first = await factory.create_dag({"key": "a"}, title="one", created_by="human:adam")
        dag_id = first["a"]["dag_id"]
        assert first["a"]["created_by"] == "human:adam"
        joined = await factory.create(dag_id=dag_id)
        assert joined["dag_id"] == dag_id
        assert joined["id"] in (await factory.dag(joined))["tasks"]
        assert (await factory.refused("POST /api/tasks", {"type": "code", "parent_id": joined["id"]}))[
            "where"
        ] == "parent_id"
        refused = await factory.refused(f"PATCH /api/tasks/{joined['id']}", {"status": "CANCELLED"})
        assert refused["where"] == "status"
        echoed = await factory.ask(f"PATCH /api/tasks/{joined['id']}", {**await factory.get(joined), "priority": 5})
        assert echoed["priority"] == 5


async def test_claim_contains_its_inputs_and_no_rejected_output(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with factory_served(store_url, monkeypatch) as factory:
        source = await factory.running()
        stated = {"output": {"data": {"facts": 3}}, "cost_usd": 0.25, "tokens_used": {"input": 7, "output": 2}}
        done = await factory.report(source, "complete", **stated)
        assert (done["output"]["data"], done["cost_usd"], done["tokens_used"]["input"]) == ({"facts": 3}, 0.25, 7)
        refs = {"prompt": "go on", "context_refs": [f"task:{source['id']}:output"]}
        reader = await factory.create(spec=refs, output={"validation": "regex", "validation_schema": "^yes"})
        claimed = await factory.claim()
        assert [each["data"] for each in claimed["inputs"]] == [{"facts": 3}]
        await factory.report(claimed, "start")
        rejected = await factory.report(claimed, "complete", data="no")
        assert (rejected["status"], rejected["output"]["data"], rejected["id"]) == ("RETRYING", None, reader["id"])
