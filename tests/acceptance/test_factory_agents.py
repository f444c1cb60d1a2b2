"""The factory document on agents: claims, heartbeats, execution, failures and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.acceptance.factory import CODER, EXACT, OTHER, STANDS_AT, Factory, Task, at, ids, served
from tests.worker.steps import until


@pytest.fixture
async def factory(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Factory]:
    async with served(store_url, monkeypatch) as server:
        yield server


AGENT: dict[str, Any] = {
    "id": "agent_coder_01",
    "type": "coder",
    "capabilities": ["code-execution", "git", "testing", "typescript", "python"],
    "models_available": ["claude-sonnet-4", "claude-haiku"],
    "max_concurrent_tasks": 2,
    "current_tasks": 1,
    "budget_remaining_usd": 45.00,
    "status": "active",
    "last_heartbeat": "2026-02-08T09:15:00Z",
    "poll_interval_sec": 5,
    "claim_ttl_sec": 60,
}
"""Word for word."""


@pytest.mark.requirement(
    "F-139", "F-140", "F-141", "F-142", "F-143", "F-144", "F-145", "F-146", "F-147", "F-218", "F-231", "F-264"
)
async def test_agent_registers_as_documented_and_is_counted(factory: Factory) -> None:
    shown = await factory.ask("POST /api/agents", AGENT)
    assert [agent["id"] for agent in (await factory.ask("GET /api/agents"))["agents"]] == [CODER]
    for name in ("capabilities", "models_available"):
        assert sorted(shown[name]) == sorted(AGENT[name])
    same = [name for name in AGENT if name not in {"capabilities", "models_available", "current_tasks"}]
    expected = {**AGENT, "last_heartbeat": at(0)}
    assert {name: shown[name] for name in same} == {name: expected[name] for name in same}
    assert shown["current_tasks"] == 0
    tasks = [await factory.create() for _ in range(3)]
    held = [await factory.claim() for _ in range(3)]
    assert ids(held[:2]) == ids(tasks[:2])
    assert held[2] is None
    assert (await factory.agent())["current_tasks"] == 2
    await factory.pass_time(30)
    await factory.ask(f"POST /api/agents/{CODER}/heartbeat")
    assert (await factory.agent())["last_heartbeat"] == at(30)
    await factory.report(held[0], "start")
    await factory.report(held[0], "complete", usage={"cost_usd": 0.50})
    assert (await factory.agent())["current_tasks"] == 1
    await factory.report(held[1], "start")
    await factory.report(held[1], "complete", usage={"cost_usd": 0.25})
    agent = await factory.agent()
    assert (agent["current_tasks"], agent["budget_remaining_usd"]) == (0, 44.25)
    for status in ("draining", "offline"):
        assert (await factory.ask(f"PATCH /api/agents/{CODER}", {"status": status}))["status"] == status
        assert await factory.claim() is None
    await factory.ask(f"PATCH /api/agents/{CODER}", {"status": "active"})
    assert (await factory.claim())["id"] == tasks[2]["id"]


@pytest.mark.requirement("F-003", "F-011", "F-012", "F-017", "F-066", "F-126", "F-131", "F-132", "F-138")
async def test_agents_get_only_ready_tasks_matching_their_capabilities(factory: Factory) -> None:
    await factory.register("half", capabilities=["code-execution"])
    await factory.register("whole", capabilities=["web-search", "code-execution", "git"])
    spec = {"prompt": "Find it", "constraints": {"required_capabilities": ["code-execution", "web-search"]}}
    task = await factory.create(spec=spec)
    waiting = await factory.create(depends_on=[task["id"]])
    await factory.pass_time(3600)
    assert await factory.status(task) == "READY"
    assert await factory.claim("half") is None
    claimed = await factory.claim("whole")
    assert claimed.keys() - {"token", "inputs"} == task.keys()
    assert (claimed["id"], claimed["spec"]) == (task["id"], spec)
    await factory.report(claimed, "start")
    await factory.report(claimed, "fail", error="boom")
    assert (await factory.status(task), await factory.status(waiting)) == ("RETRYING", "PENDING")
    assert await factory.claim("whole") is None


@pytest.mark.requirement("F-133", "F-134", "F-263", "F-265", "F-266", "F-267", "F-268", "F-269")
async def test_tasks_over_budget_are_not_assigned(factory: Factory) -> None:
    await factory.register("poor", budget_remaining_usd=0.10)
    await factory.register("rich", budget_remaining_usd=45.00, max_concurrent_tasks=5)
    await factory.create(spec={"constraints": {"max_cost_usd": 0.50}})
    estimated = await factory.create(estimated_cost=0.20)
    cheap = await factory.create(estimated_cost=0.05, priority=90)
    assert (await factory.claim("poor"))["id"] == cheap["id"]
    expensive = await factory.claim("rich")
    await factory.report(expensive, "start")
    await factory.report(expensive, "heartbeat", usage={"cost_usd": 0.10})
    await factory.report(expensive, "heartbeat", usage={"cost_usd": 0.20})
    assert (await factory.get(expensive))["cost_usd"] == pytest.approx(0.30)
    assert (await factory.claim("rich"))["id"] == estimated["id"]
    first, second = (
        {"key": key, "type": "code", "spec": {"constraints": {"max_cost_usd": cost}}}
        for key, cost in (("a", 0.60), ("b", 0.50))
    )
    tasks = await factory.create_dag(first, {**second, "depends_on": ["a"]}, budget_ceiling_usd=1.00)
    claimed = await factory.claim("rich")
    await factory.report(claimed, "start")
    await factory.report(claimed, "complete", usage={"cost_usd": 0.60})
    dag = await factory.dag(tasks["b"])
    assert (dag["budget_ceiling_usd"], dag["spent_usd"]) == (1.00, 0.60)
    assert await factory.claim("rich") is None
    raised = await factory.ask(f"PATCH /api/dags/{dag['id']}", {"budget_ceiling_usd": 1.10})
    assert raised["budget_ceiling_usd"] == 1.10
    assert (await factory.claim("rich"))["id"] == tasks["b"]["id"]


@pytest.mark.requirement("F-062", "F-150", "F-151", "F-152", "F-153", "F-154", "F-155", "F-156", "F-157", "F-158")
async def test_silent_or_slow_agents_lose_their_tasks(factory: Factory) -> None:
    await factory.register()
    task = await factory.running(retry=EXACT)
    await factory.pass_time(89)
    assert (await factory.report(task, "heartbeat", progress={"pct": 40}))["action"] == "continue"
    beaten = await factory.get(task)
    assert (beaten["claim"]["heartbeat_at"], beaten["progress"]) == (at(89), {"pct": 40})
    await factory.report(task, "heartbeat")
    assert (await factory.get(task))["progress"] == {"pct": 40}
    await factory.pass_time(89)
    assert await factory.status(task) == "RUNNING"
    await factory.pass_time(2)
    reaped = await factory.get(task)
    assert (reaped["status"], reaped["attempts"], reaped["failure_reason"]) == ("RETRYING", 1, "heartbeat_timeout")
    assert (await factory.walked(task))[-3:] == ["RUNNING", "FAILED", "RETRYING"]
    assert (await factory.agent())["current_tasks"] == 0
    assert (await factory.refused(f"POST /api/tasks/{task['id']}/complete", {"token": task["token"]}))["code"] == (
        "lease_lost"
    )
    slow = await factory.running(priority=0, spec={"constraints": {"max_duration_sec": 100}})
    await factory.pass_time(60)
    await factory.report(slow, "heartbeat")
    await factory.pass_time(41)
    late = await factory.get(slow)
    assert (late["status"], late["attempts"]) == ("RETRYING", 1)
    assert late["failure_history"][0]["reason"] == "timeout"


@pytest.mark.requirement("F-148")
async def test_idle_agent_polls_every_five_seconds(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await factory.register())["poll_interval_sec"] == 5
    await factory.set_up(wakeup="poll")
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            await factory.create(title="come meanwhile")

    timed = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr("shiftwork.engine.claim_requests.asyncio", timed)
    assert (await factory.claim(wait_sec=20))["title"] == "come meanwhile"
    assert slept == [5, 5]


@pytest.mark.requirement("F-162")
async def test_waiting_agent_is_woken_by_new_work(factory: Factory) -> None:
    await factory.register()
    waiting = asyncio.create_task(factory.claim(wait_sec=20))
    await until(lambda: bool(factory.api.state.queue.executor.shared.claim_waiters._waiters))
    task = await factory.create()
    assert (await waiting)["id"] == task["id"]


async def fail_once(factory: Factory, task: Task, agent: str = CODER, **stated: Any) -> Task:
    """Fail the next attempt as soon as it is due; return the task."""
    held = await factory.started(agent, task)
    failed: Task = await factory.report(held, "fail", **{"error": "boom", **stated})
    return failed


def delay(failed: Task, now: float) -> float:
    """Return how long until the task is retried."""
    return datetime.fromisoformat(failed["retry_at"]).timestamp() - STANDS_AT - now


@pytest.mark.requirement(
    "F-033", "F-034", "F-035", "F-166", "F-167", "F-168", "F-171", "F-172", "F-174", "F-175", "F-176", "F-177", "F-178"
)
async def test_retries_follow_the_documented_delays(factory: Factory) -> None:
    await factory.register()
    wanted = {"exponential": [10, 20, 40, 80, 160, 300, 300], "fixed": [10, 10]}
    now = 0.0
    for strategy, delays in wanted.items():
        task = await factory.create(max_attempts=len(delays) + 1, retry={"strategy": strategy, **EXACT})
        for expected in delays:
            failed = await fail_once(factory, task)
            assert failed["status"] == "RETRYING"
            assert delay(failed, now) == pytest.approx(expected)
            await factory.pass_time(expected - 1)
            assert await factory.status(task) == "RETRYING"
            await factory.pass_time(1 + 5)
            now += expected + 5
            seen = await factory.get(task)
            assert (seen["status"], seen["blocked_by"]) == ("READY", [])
        assert (await fail_once(factory, task))["status"] == "DEAD_LETTERED"
    at_once = await factory.create(retry={"strategy": "immediate"})
    assert (await fail_once(factory, at_once))["status"] == "READY"
    assert (await factory.walked(at_once))[-3:] == ["FAILED", "RETRYING", "READY"]


@pytest.mark.requirement("F-036", "F-173")
async def test_jitter_spreads_the_first_delay_over_five_to_fifteen_seconds(factory: Factory) -> None:
    await factory.register()
    delays = [delay(await fail_once(factory, await factory.create()), 0) for _ in range(30)]
    assert len(set(delays)) > 1
    assert all(5 <= each <= 15 for each in delays)


@pytest.mark.requirement("F-038", "F-039", "F-040", "F-041", "F-043", "F-044", "F-045", "F-156", "F-230")
async def test_failure_reason_decides_whether_it_is_retried(factory: Factory) -> None:
    await factory.register()
    for reason in ("timeout", "crash", "rate_limit", "invalid_output"):
        failed = await fail_once(factory, await factory.create(), reason=reason)
        assert (failed["status"], failed["attempts"], failed["failure_reason"]) == ("RETRYING", 1, "boom"), reason
    for reason in ("auth_failure", "budget_exceeded", "cancelled"):
        failed = await fail_once(factory, await factory.create(), reason=reason)
        assert (failed["status"], failed["attempts"]) == ("DEAD_LETTERED", 1), reason


@pytest.mark.requirement("F-018", "F-019", "F-169")
async def test_second_failure_switches_to_the_fallback_models(factory: Factory) -> None:
    await factory.register()
    models = {"model_preferences": ["claude-sonnet-4", "gpt-4o"], "fallback_models": ["claude-haiku"]}
    task = await factory.create(spec={"constraints": models}, retry={"strategy": "immediate"})
    preferred = []
    for _ in range(2):
        failed = await fail_once(factory, task)
        preferred.append(failed["spec"]["constraints"]["model_preferences"])
        await factory.pass_time(5)
    assert preferred == [models["model_preferences"], ["claude-haiku"]]


HISTORY: list[dict[str, Any]] = [
    {"attempt": 1, "agent": CODER, "error": "LLM returned invalid JSON", "duration_sec": 45, "cost_usd": 0.12},
    {"attempt": 2, "agent": OTHER, "error": "Test suite failed: 3 failures", "duration_sec": 120, "cost_usd": 0.31},
    {"attempt": 3, "agent": OTHER, "error": "Timeout after 300s", "duration_sec": 300, "cost_usd": 0.08},
]


@pytest.mark.requirement(
    "F-016", "F-180", "F-181", "F-182", "F-183", "F-184", "F-185", "F-186", "F-187", "F-188", "F-189", "F-195", "F-199"
)
async def test_documented_dead_letter_is_produced_as_written(factory: Factory) -> None:
    for agent in (CODER, OTHER):
        await factory.register(agent)
    task = await factory.create(spec={"constraints": {"max_duration_sec": 300}}, retry={"strategy": "immediate"})
    elapsed = 0
    for item in HISTORY:
        held = await factory.started(item["agent"], task)
        await factory.report(held, "heartbeat", usage={"cost_usd": item["cost_usd"]})
        for _ in range((item["duration_sec"] - 1) // 60):
            await factory.pass_time(60)
            await factory.report(held, "heartbeat")
        await factory.pass_time((item["duration_sec"] - 1) % 60 + 1)
        elapsed += item["duration_sec"]
        if item["attempt"] < 3:
            failed = await factory.report(held, "fail", error=item["error"])
            assert [each["agent"] for each in failed["failure_history"]] == [CODER, OTHER][: item["attempt"]]
            await factory.pass_time(5)
            elapsed += 5
    (letter,) = await factory.letters()
    shown = [{name: item[name] for name in HISTORY[0]} for item in letter["failure_history"]]
    assert shown == [{name: pytest.approx(v) if name == "cost_usd" else v for name, v in i.items()} for i in HISTORY]
    assert (letter["task_id"], letter["dag_id"]) == (task["id"], task["dag_id"])
    assert letter["total_cost_usd"] == pytest.approx(0.51)
    assert (letter["dead_lettered_at"], letter["reviewed"], letter["resolution"]) == (at(elapsed), False, None)
    assert ("task.dead_lettered", task["id"]) in await factory.events()
    await factory.pass_time(30 * 86_400)
    assert [each["task_id"] for each in await factory.letters()] == [task["id"]]


@pytest.mark.requirement("F-190", "F-191", "F-192", "F-193", "F-194", "F-275")
async def test_review_decides_a_dead_letter_and_overrides_priority(factory: Factory) -> None:
    await factory.register()
    dead = [await factory.create(max_attempts=1, spec={"prompt": "as it was"}) for _ in range(3)]
    for task in dead:
        assert (await fail_once(factory, task))["status"] == "DEAD_LETTERED"
    change = {"spec": {"prompt": "as it should be"}}
    for task, body in zip(
        dead, ({"decision": "retry"}, {"decision": "cancel"}, {"decision": "modify_and_retry", "change": change}),
        strict=True,
    ):  # fmt: skip
        await factory.ask(f"POST /api/dead-letters/{task['id']}/review", body)
    assert [await factory.status(task) for task in dead] == ["READY", "CANCELLED", "READY"]
    assert await factory.letters() == []
    letters = {letter["task_id"]: letter for letter in await factory.letters(reviewed_too=True)}
    assert [(letters[task["id"]]["reviewed"], letters[task["id"]]["resolution"]) for task in dead] == [
        (True, "retry"), (True, "cancel"), (True, "modify_and_retry"),
    ]  # fmt: skip
    override = {"priority": 5, "deadline": "2023-12-09T12:00:00Z", "note": "the client waits"}
    changed = await factory.ask(f"PATCH /api/tasks/{dead[2]['id']}", override)
    assert (changed["tier"], changed["deadline"]) == ("critical", "2023-12-09T12:00:00.000000Z")
    claimed = await factory.claim()
    assert (claimed["id"], claimed["spec"]["prompt"]) == (dead[2]["id"], "as it should be")


@pytest.mark.requirement("F-197", "F-198", "F-200", "F-201")
async def test_task_failing_with_two_agents_is_a_poison_pill(factory: Factory) -> None:
    for agent in (CODER, OTHER):
        await factory.register(agent)
    ends = []
    for agents in ((CODER, OTHER, OTHER), (CODER, CODER, CODER)):
        task = await factory.create(max_attempts=5, retry={"strategy": "immediate"})
        for agent in agents:
            await fail_once(factory, task, agent)
        after = await factory.get(task)
        ends.append((after["status"], after["attempts"], after["poison_pill"]))
        await factory.ask(f"POST /api/tasks/{task['id']}/cancel")
    assert ends == [("DEAD_LETTERED", 3, True), ("READY", 3, False)]
    assert [(await factory.agent(agent))["status"] for agent in (CODER, OTHER)] == ["active", "active"]


async def agent_loop(factory: Factory, name: str) -> None:
    """As the document writes it."""
    agent = await factory.register(name, max_concurrent_tasks=2)
    executing: set[asyncio.Task[None]] = set()
    while agent["status"] != "offline":
        if len(executing) >= agent["max_concurrent_tasks"]:
            _, executing = await asyncio.wait(executing, return_when=asyncio.FIRST_COMPLETED)
        elif task := await factory.claim(name, wait_sec=0.5):
            executing.add(asyncio.create_task(execute_task(factory, task)))
        agent = await factory.agent(name)
    await asyncio.gather(*executing)


async def execute_task(factory: Factory, task: Task) -> None:
    try:
        await factory.report(task, "start")
        await factory.report(task, "heartbeat", progress={"pct": 50})
        output = {"length": len(task["spec"]["prompt"])}
        await factory.report(task, "complete", data=output)
    except TypeError as error:
        await factory.report(task, "fail", error=str(error))


@pytest.mark.requirement("F-001", "F-218", "F-220", "F-226", "F-274")
async def test_agents_in_the_documented_loop_complete_all_tasks(factory: Factory) -> None:
    loops = [asyncio.create_task(agent_loop(factory, name)) for name in (CODER, OTHER)]
    chain = await factory.create_dag(
        *({"key": str(n), "spec": {"prompt": "x" * n}, "depends_on": [str(n - 1)] if n > 5 else []} for n in range(10))
    )
    bad = await factory.create(max_attempts=1)

    async def drained() -> bool:
        return (await factory.dag(chain["0"]))["status"] == "completed" and bool(await factory.letters())

    await until(drained)
    for name in (CODER, OTHER):
        await factory.ask(f"PATCH /api/agents/{name}", {"status": "offline"})
    await asyncio.gather(*loops)
    assert [(await factory.get(task))["output"]["data"] for task in chain.values()] == [
        {"length": n} for n in range(10)
    ]
    assert "NoneType" in (await factory.get(bad))["failure_reason"]
    assert [(await factory.agent(name))["current_tasks"] for name in (CODER, OTHER)] == [0, 0]


@pytest.mark.requirement(
    "F-041", "F-047", "F-048", "F-063", "F-227", "F-229", "F-232", "F-233", "F-234", "F-235", "F-236", "F-237"
)
async def test_outputs_are_validated_by_each_documented_method(factory: Factory) -> None:
    await factory.register(max_concurrent_tasks=None, capabilities=["judge"])
    schema = {"type": "object", "required": ["status"]}
    checks: list[tuple[str, Any, dict[str, Any], dict[str, Any], str]] = [
        ("json-schema", schema, {"data": {"status": 200}}, {"data": {"code": 200}}, "status"),
        ("test-pass", "make", {"verdict": {"passed": True}}, {"verdict": {"passed": False, "note": "3 bad"}}, "3 bad"),
        ("regex", "https?://", {"data": "see https://example.org"}, {"data": "see nothing"}, "https"),
    ]
    for method, given, good, bad, complaint in checks:
        for stated, end in ((good, "COMPLETED"), (bad, "RETRYING")):
            task = await factory.running(output={"validation": method, "validation_schema": given}, retry=EXACT)
            assert (await factory.report(task, "complete", **stated))["status"] == end, method
            assert "VALIDATING" in await factory.walked(task)
            assert complaint in ((await factory.get(task))["failure_reason"] or "") or end == "COMPLETED"
    trusted = await factory.running(output={"validation": "none"})
    assert (await factory.report(trusted, "complete", data="anything"))["status"] == "COMPLETED"
    question = {"validation": "llm-judge", "validation_schema": "Is this summary accurate and complete?"}
    for verdict, end in (("accept", "COMPLETED"), ("reject", "RETRYING")):
        judged = await factory.running(output=question)
        assert (await factory.report(judged, "complete", data="a summary"))["status"] == "VALIDATING"
        judge = await factory.claim(types=["judge"])
        await factory.report(judge, "start")
        await factory.report(judge, "complete", data={"verdict": verdict, "reasons": ["so it seems"]})
        assert await factory.status(judged) == end
