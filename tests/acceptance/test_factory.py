"""The factory document from the task schema to priorities, over HTTP, with its own names.

Agents, retries and dead letters are in test_factory_agents.py; the sources of work, its storage and what is
measured in test_factory_ground.py; its people's dashboard in tests/dashboard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.acceptance.factory import ABLE, CODER, STANDS_AT, Factory, at, ids, served

ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@pytest.fixture
async def factory(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Factory]:
    async with served(store_url, monkeypatch) as server:
        yield server


# Word for word as the document has it, with one of each word it leaves open. Times and references are filled in.
WRITTEN: dict[str, Any] = {
    "idempotency_key": "pr-123-lint",
    "parent_id": None,
    "type": "code",
    "title": "Fix auth middleware CORS handling",
    "spec": {
        "prompt": "...",
        "constraints": {
            "max_cost_usd": 0.50,
            "max_duration_sec": 300,
            "required_capabilities": ["code-execution", "web-search"],
            "model_preferences": ["claude-sonnet-4", "gpt-4o"],
            "fallback_models": ["claude-haiku"],
        },
    },
    "priority": 50,
    "priority_boost_per_minute": 0.1,
    "blocked_by": [],
    "status": "pending",
    "claim": {"agent_id": None, "claimed_at": None, "heartbeat_at": None, "heartbeat_interval_sec": 30},
    "attempts": 0,
    "max_attempts": 3,
    "retry": {
        "strategy": "exponential",
        "initial_delay_sec": 10,
        "backoff_multiplier": 2.0,
        "max_delay_sec": 300,
        "jitter": True,
        "retry_on": ["timeout", "crash", "rate_limit", "invalid_output"],
        "no_retry_on": ["auth_failure", "budget_exceeded", "cancelled"],
    },
    "output": {"type": "code", "validation": "none", "validation_schema": None, "data": None, "artifacts": []},
    "created_by": "agent:orchestrator",
    "started_at": None,
    "completed_at": None,
    "cost_usd": 0.00,
    "tokens_used": {"input": 0, "output": 0},
    "tags": ["repo:myapp", "sprint:12"],
}
ADDED = {
    "estimated_cost": 0.5, "tier": "normal", "effective_priority": 50, "age_minutes": 0, "progress": None,
    "retry_at": None, "failure_reason": None, "failure_history": [], "poison_pill": False, "dead_lettered_at": None,
}  # fmt: skip
"""What the document names elsewhere."""


@pytest.mark.requirement(
    "F-005", "F-006", "F-007", "F-008", "F-009", "F-010", "F-014", "F-015", "F-019", "F-022", "F-029", "F-031", "F-037",
    "F-042", "F-051", "F-057",
)  # fmt: skip
async def test_documented_record_survives_a_round_trip(factory: Factory) -> None:
    uploaded = await factory.api.call("POST", "/api/artifacts", data=b"notes")
    first, second = await factory.create(), await factory.create()
    references = [uploaded.json["id"], f"task:{first['id']}:output"]
    record = {**WRITTEN, "deadline": "2026-12-09T12:00:00Z", "depends_on": ids([first, second])}
    record["spec"] = {**WRITTEN["spec"], "context_refs": references}
    await factory.pass_time(10)
    task = await factory.create(**record)
    assert task.pop("priority_parts").keys() >= {"base", "age", "deadline", "dependency"}
    assert task.pop("output") == {**WRITTEN["output"], "verdict": None}
    made = {"id": task["id"], "dag_id": task["dag_id"], "created_at": at(10)}
    kept = {**record, "deadline": "2026-12-09T12:00:00.000000Z", "status": "PENDING"}
    del kept["output"]
    assert task == {**kept, **ADDED, **made, "blocked_by": ids([first, second])}
    for prefix, name in (("task_", "id"), ("dag_", "dag_id")):
        assert ULID.fullmatch(task[name].removeprefix(prefix))
    assert first["id"] < second["id"] < task["id"]
    again = await factory.create(**record)
    assert again["id"] == task["id"]


@pytest.mark.requirement("F-009", "F-029", "F-031", "F-037", "F-042", "F-046")
async def test_omitted_fields_have_documented_defaults_and_every_word_is_accepted(factory: Factory) -> None:
    bare = await factory.create()
    for name in ("priority", "priority_boost_per_minute", "claim", "attempts", "max_attempts", "retry", "tags"):
        assert bare[name] == ([] if name == "tags" else WRITTEN[name]), name
    assert (bare["output"]["data"], bare["output"]["artifacts"], bare["deadline"]) == (None, [], None)
    for word in ("code", "research", "review", "test", "deploy", "synthesis"):
        assert (await factory.create(type=word))["type"] == word
    for word in ("exponential", "fixed", "immediate"):
        assert (await factory.create(retry={"strategy": word}))["retry"]["strategy"] == word
    for word in ("code", "markdown", "json", "artifact"):
        assert (await factory.create(output={"type": word}))["output"]["type"] == word
    schemas = {
        "json-schema": {"type": "object"},
        "test-pass": "make test",
        "llm-judge": "Is it so?",
        "regex": "https?:",
    }
    for word, schema in {**schemas, "none": None}.items():
        task = await factory.create(output={"validation": word, "validation_schema": schema})
        assert (task["output"]["validation"], task["output"]["validation_schema"]) == (word, schema)
    assert "urgency" in (await factory.refused("POST /api/tasks", {"type": "code", "urgency": 3}))["detail"]


@pytest.mark.requirement("F-013")
async def test_agent_gets_the_inputs_its_task_refers_to(factory: Factory) -> None:
    await factory.register()
    source = await factory.create()
    await factory.finish(data={"found": 3})
    await factory.create(spec={"context_refs": [f"task:{source['id']}:output"]})
    claimed = await factory.claim()
    inputs = await factory.api.get(f"/api/tasks/{claimed['id']}/inputs")
    assert [each["data"] for each in inputs["inputs"]] == [{"found": 3}]
    unknown = await factory.refused("POST /api/tasks", {"type": "code", "spec": {"context_refs": ["artifact:abc"]}})
    assert unknown["code"] == "unknown_reference"


BEGUN = ["CREATED", "PENDING", "READY", "CLAIMED", "RUNNING"]


@pytest.mark.requirement(
    "F-026", "F-027", "F-028", "F-049", "F-053", "F-054", "F-058", "F-059", "F-060", "F-061", "F-064", "F-070", "F-071",
    "F-072", "F-073", "F-074", "F-075", "F-095", "F-128", "F-129", "F-130", "F-224", "F-228",
)  # fmt: skip
async def test_task_goes_from_created_to_completed(factory: Factory) -> None:
    await factory.register()
    task = await factory.create()
    child = await factory.create(depends_on=[task["id"]])
    assert (task["status"], child["status"]) == ("READY", "PENDING")
    await factory.pass_time(5)
    claimed = await factory.claim()
    assert (claimed["status"], claimed["started_at"]) == ("CLAIMED", None)
    assert {**claimed["claim"], "heartbeat_interval_sec": 0} == {
        "agent_id": CODER, "claimed_at": at(5), "heartbeat_at": None, "heartbeat_interval_sec": 0,
    }  # fmt: skip
    await factory.pass_time(5)
    started = await factory.report(claimed, "start")
    assert (started["status"], started["started_at"], started["claim"]["heartbeat_at"]) == ("RUNNING", at(10), at(10))
    await factory.pass_time(5)
    done = await factory.report(claimed, "complete", data={"answer": 42})
    assert (done["status"], done["completed_at"], done["output"]["data"]) == ("COMPLETED", at(15), {"answer": 42})
    assert await factory.walked(task) == [*BEGUN, "VALIDATING", "COMPLETED"]
    assert await factory.status(child) == "READY"


@pytest.mark.requirement("F-065", "F-067", "F-076", "F-077", "F-078", "F-079", "F-080", "F-081")
async def test_each_documented_failure_path_is_followed(factory: Factory) -> None:
    await factory.register()
    task = await factory.running(output={"validation": "json-schema", "validation_schema": {"type": "object"}})
    await factory.report(task, "complete", data="no object")
    assert (await factory.walked(task))[5:] == ["VALIDATING", "FAILED", "RETRYING"]
    await factory.pass_time(16)
    await factory.started(CODER, task)
    await factory.pass_time(91)  # the heartbeat is missed
    assert (await factory.walked(task))[8:] == ["READY", "CLAIMED", "RUNNING", "FAILED", "RETRYING"]
    await factory.pass_time(31)
    assert (await factory.claim())["id"] == task["id"]
    await factory.pass_time(59)
    assert await factory.status(task) == "CLAIMED"
    await factory.pass_time(2)  # the claim has expired
    assert (await factory.walked(task))[13:] == ["READY", "CLAIMED", "FAILED", "DEAD_LETTERED"]


@pytest.mark.requirement("F-068", "F-082")
async def test_task_is_cancelled_and_undocumented_transitions_are_refused(factory: Factory) -> None:
    await factory.register(max_concurrent_tasks=3)
    parent = await factory.create()
    waiting = await factory.create(depends_on=[parent["id"]])
    cancelled = await factory.ask(f"POST /api/tasks/{waiting['id']}/cancel")
    assert (cancelled["status"], await factory.walked(waiting)) == ("CANCELLED", ["CREATED", "PENDING", "CANCELLED"])
    token = {"token": f"{parent['id']}.1"}
    for verb in ("start", "complete", "fail"):
        await factory.refused(f"POST /api/tasks/{parent['id']}/{verb}", token)
        assert await factory.status(parent) == "READY"
    await factory.finish()
    for verb in ("start", "fail", "cancel"):
        await factory.refused(f"POST /api/tasks/{parent['id']}/{verb}", {} if verb == "cancel" else token)
        assert await factory.status(parent) == "COMPLETED"


LANDING_PAGE = (
    {"key": "research", "type": "research", "title": "competitors"},
    {"key": "design", "type": "research", "title": "wireframe"},
    {"key": "implement", "title": "code"},
    {"key": "synthesize", "type": "synthesis", "title": "requirements", "depends_on": ["research", "design"]},
    {"key": "deploy", "type": "deploy", "title": "Test & Deploy", "depends_on": ["implement", "synthesize"]},
)


@pytest.mark.requirement(
    "F-004", "F-023", "F-084", "F-085", "F-087", "F-088", "F-089", "F-091", "F-093", "F-094", "F-096", "F-097", "F-098",
    "F-100", "F-214", "F-215", "F-217", "F-268",
)  # fmt: skip
async def test_landing_page_dag_runs_in_dependency_order(factory: Factory) -> None:
    title = "Build landing page for client X"
    tasks = await factory.create_dag(*LANDING_PAGE, title=title, created_by="human:adam")
    dag = await factory.dag(tasks["deploy"])
    assert {name: dag[name] for name in ("id", "title", "created_by", "status", "done", "total")} == {
        "id": tasks["research"]["dag_id"], "title": title, "created_by": "human:adam",
        "status": "pending", "done": 0, "total": 5,
    }  # fmt: skip
    assert sorted(dag["tasks"]) == sorted(ids(tasks.values()))
    roots = [tasks[key] for key in ("research", "design", "implement")]
    assert (sorted(dag["roots"]), dag["leaves"]) == (sorted(ids(roots)), [tasks["deploy"]["id"]])
    assert [task["status"] for task in tasks.values()] == ["READY"] * 3 + ["PENDING"] * 2
    blocked = [(await factory.get(tasks[key]))["blocked_by"] for key in ("synthesize", "deploy")]
    assert blocked == [ids([roots[0], roots[1]]), sorted(ids([roots[2], tasks["synthesize"]]))]
    await factory.register()
    done = [await factory.finish(usage={"cost_usd": 0.25}) for _ in range(5)]
    assert done[-1]["id"] == tasks["deploy"]["id"]
    order = ids(done)
    assert order.index(tasks["synthesize"]["id"]) > max(order.index(root["id"]) for root in roots[:2])
    dag = await factory.dag(tasks["deploy"])
    assert (dag["status"], dag["done"], dag["spent_usd"]) == ("completed", 5, 1.25)
    events = await factory.events()
    assert [about for name, about in events if name == "task.ready"][3:] == ids([tasks["synthesize"], tasks["deploy"]])
    assert [name for name, _ in events].count("dag.completed") == 1
    assert (await factory.walked(tasks["research"]))[:3] == ["CREATED", "PENDING", "READY"]


@pytest.mark.requirement("F-069", "F-086", "F-090", "F-099")
async def test_dag_status_follows_its_tasks(factory: Factory) -> None:
    await factory.register()
    lone = await factory.create()
    assert (await factory.dag(lone))["tasks"] == [lone["id"]]
    await factory.finish()
    assert (await factory.dag(lone))["status"] == "completed"
    pair = await factory.create_dag({"key": "a"}, {"key": "b", "priority": 90})
    assert (await factory.dag(pair["a"]))["status"] == "pending"
    claimed = await factory.claim()
    assert (await factory.dag(pair["a"]))["status"] == "running"
    await factory.report(claimed, "start")
    await factory.report(claimed, "complete")
    await factory.ask(f"POST /api/tasks/{pair['b']['id']}/cancel")
    assert (await factory.dag(pair["a"]))["status"] == "completed"
    doomed = await factory.create_dag({"key": "a", "max_attempts": 1}, {"key": "b", "depends_on": ["a"]})
    claimed = await factory.claim()
    await factory.report(claimed, "start")
    await factory.report(claimed, "fail", error="boom")
    assert (await factory.status(doomed["a"]), await factory.status(doomed["b"])) == ("DEAD_LETTERED", "PENDING")
    assert (await factory.dag(doomed["a"]))["status"] == "failed"
    unwanted = await factory.create_dag({"key": "a"}, {"key": "b"})
    stopped = (await factory.ask(f"POST /api/dags/{unwanted['a']['dag_id']}/cancel"))["tasks"]
    assert {task["status"] for task in stopped} == {"CANCELLED"}
    assert (await factory.dag(unwanted["a"]))["status"] == "cancelled"
    listed = (await factory.ask("GET /api/dags?status=failed"))["dags"]
    assert [(dag["id"], dag["done"], dag["total"]) for dag in listed] == [(doomed["a"]["dag_id"], 0, 2)]


@pytest.mark.requirement("F-083", "F-092", "F-101", "F-102", "F-103", "F-105", "F-106", "F-107", "F-203")
async def test_researcher_spawns_three_tasks_and_waits_for_a_fourth(factory: Factory) -> None:
    await factory.register(max_concurrent_tasks=2)
    parent = await factory.running(type="research")
    subtasks = [{"type": "research", "title": f"sub-investigation {n}"} for n in (1, 2, 3)]
    spawned = (await factory.report(parent, "spawn", tasks=subtasks))["tasks"]
    assert {(task["parent_id"], task["dag_id"], task["created_by"], task["status"]) for task in spawned} == {
        (parent["id"], parent["dag_id"], f"agent:{CODER}", "READY")
    }
    assert await factory.status(parent) == "RUNNING"
    dag = await factory.dag(parent)
    assert sorted(dag["tasks"]) == sorted(dag["roots"]) == sorted(ids([parent, *spawned]))
    (listed,) = (await factory.ask("GET /api/dags"))["dags"]
    assert (listed["id"], listed["status"], listed["total"]) == (parent["dag_id"], "running", 4)
    (fourth,) = (await factory.report(parent, "spawn", tasks=[{"type": "research", "priority": 1}], wait=True))["tasks"]
    paused = await factory.get(parent)
    assert (paused["status"], paused["blocked_by"], paused["attempts"]) == ("PENDING", [fourth["id"]], 0)
    assert (await factory.dag(parent))["leaves"] == ids([parent, *spawned])
    assert (await factory.finish())["id"] == fourth["id"]
    assert await factory.status(parent) == "READY"


@pytest.mark.requirement("F-104", "F-108", "F-216")
async def test_circular_dependencies_are_refused_whole(factory: Factory) -> None:
    stated = "Would create circular dependency"
    circle = [{"key": "a", "type": "code", "depends_on": ["b"]}, {"key": "b", "type": "code", "depends_on": ["a"]}]
    assert stated in (await factory.refused("POST /api/dags", {"tasks": circle}))["detail"]
    for wrong in ({"type": "code", "depends_on": ["nobody"]}, {"type": "code", "priority": 101}, {"title": "no type"}):
        await factory.refused("POST /api/dags", {"tasks": [{"key": "good", "type": "code"}, wrong]})
    assert (await factory.ask("GET /api/tasks"))["tasks"] == []
    await factory.register()
    parent = await factory.running()
    body = {"token": parent["token"], "tasks": [{"type": "code", "depends_on": [parent["id"]]}]}
    assert stated in (await factory.refused(f"POST /api/tasks/{parent['id']}/spawn", {**body, "wait": True}))["detail"]
    assert ((await factory.dag(parent))["tasks"], await factory.status(parent)) == ([parent["id"]], "RUNNING")
    pair = await factory.create_dag({"key": "a"}, {"key": "b", "depends_on": ["a"]})
    for above in ("b", "a"):  # what waits for it, and itself
        change = {"depends_on": [pair[above]["id"]]}
        assert stated in (await factory.refused(f"PATCH /api/tasks/{pair['a']['id']}", change))["detail"]
    more = {"tasks": [{"type": "code", "depends_on": [pair["b"]["id"]]}]}
    (added,) = (await factory.ask(f"POST /api/dags/{pair['a']['dag_id']}/tasks", more))["tasks"]
    assert (await factory.dag(pair["a"]))["leaves"] == [added["id"]]


@pytest.mark.requirement(
    "F-021", "F-110", "F-111", "F-112", "F-113", "F-114", "F-115", "F-116", "F-117", "F-123", "F-124", "F-135"
)
async def test_effective_priority_is_the_sum_of_its_parts_over_time(factory: Factory) -> None:
    background = await factory.create(priority=90)
    assert (background["effective_priority"], background["age_minutes"], background["tier"]) == (90, 0, "background")
    await factory.pass_time(30 * 60)
    later = await factory.get(background)
    assert (later["age_minutes"], later["effective_priority"]) == (30, pytest.approx(87))
    await factory.pass_time(270 * 60)
    assert (await factory.get(background))["effective_priority"] == pytest.approx(60)
    await factory.pass_time(10 * 60)
    later = await factory.get(background)
    assert (later["effective_priority"], later["priority"]) == (pytest.approx(59), 90)

    soon = await factory.create(deadline=STANDS_AT + 320 * 60, priority_boost_per_minute=0)
    chain = await factory.create_dag({"key": "a"}, {"key": "b", "depends_on": ["a"]}, {"key": "c", "depends_on": ["b"]})
    lone = await factory.create()
    boosts = []
    for minutes in (0, 5, 4):  # ten before the deadline, then five, then one
        await factory.pass_time(minutes * 60)
        seen = await factory.get(soon)
        boosts.append(seen["priority_parts"]["deadline"])
        parts = seen["priority_parts"]
        whole = parts["base"] - parts["age"] - parts["deadline"] - parts["dependency"]
        assert seen["effective_priority"] == pytest.approx(whole)
    assert boosts[1] - boosts[0] > 0
    assert (boosts[2] - boosts[1]) / 4 > (boosts[1] - boosts[0]) / 5
    head = await factory.get(chain["a"])
    assert head["priority_parts"]["dependency"] > (await factory.get(lone))["priority_parts"]["dependency"]
    await factory.register(max_concurrent_tasks=None)
    tasks = [await factory.get(task) for task in (background, soon, chain["a"], lone)]
    wanted = ids(sorted(tasks, key=lambda task: float(task["effective_priority"])))
    assert ids([await factory.claim() for _ in range(4)]) == wanted


@pytest.mark.requirement("F-020", "F-118", "F-119", "F-120", "F-121", "F-122")
async def test_tiers_have_the_documented_bounds(factory: Factory) -> None:
    tiers = {"critical": (0, 9), "high": (10, 29), "normal": (30, 59), "low": (60, 79), "background": (80, 100)}
    edges = [(tier, priority) for tier, ends in tiers.items() for priority in ends]
    for tier, priority in reversed(edges):
        assert (await factory.create(priority=priority))["tier"] == tier
    await factory.register(max_concurrent_tasks=None)
    assert [(await factory.claim())["priority"] for _ in edges] == [priority for _, priority in edges]
    assert "priority" in (await factory.refused("POST /api/tasks", {"type": "code", "priority": 101}))["where"]


@pytest.mark.requirement("F-125")
async def test_background_task_is_claimed_despite_endless_normal_work(factory: Factory) -> None:
    await factory.register()
    background = await factory.create(priority=90)
    for _ in range(7):
        normal = await factory.create(priority=50)
        assert (await factory.finish())["id"] == normal["id"]
        await factory.pass_time(3600)
    await factory.create(priority=50)
    assert (await factory.finish())["id"] == background["id"]


@pytest.mark.requirement("F-127")
async def test_each_task_has_one_claimer_among_fifty_agents(factory: Factory) -> None:
    tasks = [await factory.create() for _ in range(20)]
    agents = [f"agent_{number:02}" for number in range(50)]
    got = await asyncio.gather(*(factory.claim(agent, capabilities=ABLE) for agent in agents))
    assert sorted(task["id"] for task in got if task) == sorted(ids(tasks))
