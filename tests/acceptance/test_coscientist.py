"""The co-scientist document from its overview to its example scenarios, over HTTP, with its own names and profile.

Capacity and worker failure are in test_coscientist_capacity.py, recovery, timing and conflicts in
test_coscientist_recovery.py.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from shiftwork.server.routes import ENDPOINTS
from shiftwork.views.view import time_in
from tests.acceptance.coscientist import Coscientist, at, served
from tests.worker.steps import until

AGENT_TYPES = ("Generation", "Reflection", "Ranking", "Evolution", "Proximity", "MetaReview")


@pytest.fixture
async def queue(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coscientist]:
    async with served(store_url, monkeypatch) as opened:
        yield opened


INTERFACES = {
    "Supervisor Agent": {
        "POST /api/tasks", "GET /api/tasks/{task_id}", "GET /api/tasks/{task_id}/result", "GET /api/queue",
        "GET /api/queue/backpressure", "GET /api/alerts", "GET /api/events", "GET /metrics", "POST /api/queue/pause",
        "POST /api/queue/resume", "POST /api/queue/purge", "POST /api/queue/rebalance", "GET /api/dead-letters",
        "POST /api/dead-letters/{task_id}/review", "GET /api/settings", "PATCH /api/settings",
    },
    "Worker Processes": {
        "POST /api/agents", "POST /api/agents/{agent_id}/heartbeat", "POST /api/tasks/claim",
        "POST /api/tasks/{task_id}/start", "POST /api/tasks/{task_id}/heartbeat", "POST /api/tasks/{task_id}/progress",
        "POST /api/tasks/{task_id}/complete", "POST /api/tasks/{task_id}/fail",
    },
    "Context Memory": {"GET /api/snapshots", "POST /api/snapshots"},
}  # fmt: skip


@pytest.mark.requirement("C-001")
async def test_supervisor_workers_and_memory_have_their_interfaces(queue: Coscientist) -> None:
    paths = (await queue.api.get("/openapi.json"))["paths"]
    scopes = {f"{endpoint.method} {endpoint.path}": endpoint.scope for endpoint in ENDPOINTS}
    for role, calls in INTERFACES.items():
        for call in calls:
            method, path = call.split(" ")
            operation = paths[path][method.lower()]
            assert operation["summary"], call
            assert operation["responses"], call
            assert (scopes[call] == "work") == (role == "Worker Processes"), call


@pytest.mark.requirement("C-003", "C-004", "C-136")
async def test_workers_join_and_leave_while_the_queue_runs(queue: Coscientist) -> None:
    await queue.fill("Medium", 3)
    await queue.register("early")
    await queue.complete(await queue.take("early"))
    reply = await queue.api.call("POST", "/api/agents/early/deregister?workspace=lab")
    assert reply.status == 204
    await queue.register("late")
    for _ in range(2):
        await queue.complete(await queue.take("late"))
    assert (await queue.query())["completions"] == 3


@pytest.mark.requirement("C-005", "C-006", "C-007", "C-008", "C-009", "C-010", "C-080", "C-158")
@pytest.mark.requirement("C-011", "C-012", "C-013", "C-015", "C-016", "C-017", "C-082", "C-084", "C-085")
async def test_task_passes_the_documented_states(queue: Coscientist) -> None:
    task = await queue.submit()
    assert task["status"] == "Pending"
    first = await queue.request("w1")
    assert ((await queue.get(task))["status"], (await queue.get(task))["worker_id"]) == ("Assigned", "w1")
    assert (await queue.acknowledge(first))["status"] == "Executing"
    assert (await queue.fail(first, "network error", "connection reset"))["status"] == "Retrying"
    assert await queue.request("w2") is None
    await queue.pass_time(8)
    again = await queue.get(task)
    assert (again["status"], again["worker_id"], again["retry_count"]) == ("Pending", None, 1)
    assert (await queue.complete(await queue.take("w2")))["status"] == "Completed"
    assert await queue.history(task) == [
        "Pending → Assigned",
        "Assigned → Executing",
        "Executing → Failed",
        "Failed → Retrying",
        "Retrying → Pending",
        "Pending → Assigned",
        "Assigned → Executing",
        "Executing → Completed",
    ]


@pytest.mark.requirement("C-014", "C-031", "C-081", "C-221", "C-242")
async def test_unacknowledged_assignment_is_released_after_five_seconds(
    queue: Coscientist,
) -> None:
    task = await queue.submit()
    lost = await queue.request("w1")
    await queue.pass_time(4)
    assert await queue.status(task) == "Assigned"
    await queue.pass_time(1)
    assert await queue.history(task) == ["Pending → Assigned", "Assigned → Failed", "Failed → Pending"]
    assert (await queue.get(task))["retry_count"] == 0
    assert (await queue.request("w2"))["task"]["id"] == task["id"]
    stated = {"assignment_id": lost["assignment_id"]}
    assert (await queue.call(f"POST /api/tasks/{task['id']}/start", stated)).code == "lease_lost"


@pytest.mark.requirement("C-018", "C-019", "C-022", "C-023", "C-078", "C-234", "C-250", "C-254")
async def test_high_goes_before_medium_and_low_and_older_first(queue: Coscientist) -> None:
    made: dict[str, list[str]] = {"High": [], "Medium": [], "Low": []}
    for priority in ("Low", "Medium", "High", "Medium", "High", "Low", "Medium"):
        made[priority].append((await queue.submit(priority))["id"])
        await queue.pass_time(1)
    handed = [await queue.took(f"w{n}") for n in range(7)]
    assert handed == made["High"] + made["Medium"] + made["Low"]


@pytest.mark.requirement("C-020", "C-021", "C-083")
async def test_retry_and_agent_type_can_change_priority(queue: Coscientist) -> None:
    await queue.configure_type("MetaReview", {"type_boost": 10})
    await queue.configure_type("Evolution", {"retry.priority_delta": -30})
    failed = await queue.submit(agent_type="Evolution")
    await queue.fail(await queue.take("w1"), "network error", "connection reset")
    await queue.pass_time(8)
    assert (await queue.get(failed))["priority"] == "High"
    plain = await queue.submit()
    boosted = await queue.submit(agent_type="MetaReview")
    assert [await queue.took(f"w{n}") for n in (2, 3, 4)] == [failed["id"], boosted["id"], plain["id"]]


@pytest.mark.requirement("C-024", "C-225", "C-226")
async def test_low_task_is_medium_after_ten_minutes_and_high_after_twenty(queue: Coscientist) -> None:
    task = await queue.submit("Low")
    seen = []
    for step in (599, 1, 599, 1):
        await queue.pass_time(step)
        seen.append((await queue.get(task))["priority"])
    assert seen == ["Low", "Medium", "Medium", "High"]
    await queue.submit("High")
    assert await queue.took("w1") == task["id"]


@pytest.mark.requirement("C-025", "C-026", "C-027", "C-029", "C-047", "C-048", "C-051", "C-126", "C-137")
async def test_worker_registers_claims_and_sends_heartbeats(queue: Coscientist) -> None:
    registered = await queue.register("w1", capabilities=["gpu"], agent_types=["Ranking"])
    assert (registered["status"], registered["capabilities"]) == ("idle", ["gpu"])
    assert (registered["heartbeat"], registered["heartbeat_interval"]) == (at(0), 30)
    assert await queue.request("w1") is None
    await queue.submit(agent_type="Evolution")
    task = await queue.submit()
    assert await queue.took("w1") == task["id"]
    await queue.submit()
    assert await queue.request("w1") is None, "one task at a time"
    assert await queue.request("w2", agent_types=["Proximity"]) is None
    await queue.pass_time(60)
    beaten = await queue.ask("POST /api/agents/w1/heartbeat")
    assert (beaten["status"], beaten["heartbeat"]) == ("active", at(60))
    await queue.pass_time(89)
    assert await queue.status(task) == "Executing", "the worker's beat counts for what it holds"


@pytest.mark.requirement("C-039", "C-040", "C-042", "C-043", "C-044", "C-045", "C-046", "C-076", "C-132")
async def test_task_is_returned_as_sent(queue: Coscientist) -> None:
    await queue.submit("High", id="generation-1", agent_type="Generation")
    sent = {
        "id": "match-1",
        "agent_type": "Ranking",
        "priority": "Low",
        "payload": {"pair": [{"id": 1}, {"id": 2}]},
        "dependencies": ["generation-1"],
        "retry_policy": {"max_attempts": 5, "backoff_strategy": "exponential"},
        "timeout": 90,
        "created_at": "2020-01-01T00:00:00Z",
    }
    await queue.pass_time(1)
    task = await queue.ask("POST /api/tasks", sent)
    assert {name: task[name] for name in ("id", "agent_type", "priority", "payload", "timeout")} == {
        name: sent[name] for name in ("id", "agent_type", "priority", "payload", "timeout")
    }
    assert task["created_at"] == at(1), "the queue's own time, which orders"
    assert task["retry_policy"].items() >= {"max_attempts": 5, "backoff_strategy": "exponential"}.items()
    (before,) = task["dependencies"]
    assert (await queue.get({"id": before}))["id"] == "generation-1"
    assert (await queue.refused("Low", id="match-1")).code == "id_in_use"
    for agent_type in AGENT_TYPES:
        assert (await queue.submit(agent_type=agent_type))["agent_type"] == agent_type
    assert (await queue.query())["depth"] == {"high": 1, "medium": 6, "low": 1}


@pytest.mark.requirement("C-041", "C-074")
@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"priority": "Urgent"}, "priority"),
        ({"payload": "text"}, "task.payload"),
        ({"timeout": -1}, "task.timeout"),
        ({"agent_type": ""}, "agent_type"),
        ({"colour": "red"}, "colour"),
        ({"retry_policy": {"max_attempts": 0}}, "task.retry_policy.max_attempts"),
    ],
)
async def test_malformed_task_is_refused(queue: Coscientist, wrong: dict[str, Any], where: str) -> None:
    reply = await queue.call("POST /api/tasks", {**queue.task("Low"), **wrong})
    assert (reply.status, reply.code, reply.json["where"]) == (422, "invalid_input", where)
    assert (await queue.ask("GET /api/tasks"))["tasks"] == []


@pytest.mark.requirement("C-053", "C-134")
async def test_purge_removes_matching_tasks(queue: Coscientist) -> None:
    await queue.fill("Low", 3)
    held = await queue.take("w1")
    await queue.fill("Medium", 2)
    assert (await queue.call("POST /api/queue/purge", {"priority": "Urgent"})).json["where"] == "priority"
    assert await queue.ask("POST /api/queue/purge", {"priority": "Low", "status": "Pending"}) == {"purged": 2}
    assert (await queue.query())["depth"] == {"high": 0, "medium": 2, "low": 0}
    await queue.complete(held)


@pytest.mark.requirement("C-054", "C-055", "C-134")
async def test_paused_queue_assigns_nothing_and_lets_running_tasks_complete(queue: Coscientist) -> None:
    await queue.fill("High", 2)
    held = await queue.take("w1")
    await queue.ask("POST /api/queue/pause")
    assert await queue.request("w2") is None
    assert (await queue.complete(held))["status"] == "Completed"
    await queue.ask("POST /api/queue/resume")
    assert await queue.request("w2") is not None


@pytest.mark.requirement("C-056", "C-134")
async def test_rebalance_moves_unstarted_tasks_to_idle_workers(queue: Coscientist) -> None:
    await queue.register("loaded", max_concurrent_tasks=3)
    await queue.fill("Medium", 3)
    claimed = await queue.ask("POST /api/tasks/claim", {"worker_id": "loaded", "count": 3})
    held = claimed["assignments"]
    await queue.acknowledge(held[0])
    await queue.register("idle")
    (moved,) = (await queue.ask("POST /api/queue/rebalance"))["outcomes"]
    assert await queue.took("idle") == moved["task_id"] != held[0]["task"]["id"]


@pytest.mark.requirement("C-057", "C-058", "C-059", "C-060", "C-222", "C-241")
async def test_assignment_contains_the_whole_task_and_its_deadlines(queue: Coscientist) -> None:
    task = await queue.submit(timeout=100)
    await queue.pass_time(1)
    first = await queue.request("w1")
    assert first["task"].keys() == task.keys()
    assert (first["task"]["payload"], first["task"]["status"]) == (task["payload"], "Assigned")
    assert first["deadline"] == at(1 + 120), "the task's own limit and a fifth"
    assert first["acknowledgment_required_by"] == at(1 + 5)
    assert (await queue.acknowledge(first))["status"] == "Executing"
    await queue.report(first, "release")
    second = await queue.take("w1")
    assert second["assignment_id"] != first["assignment_id"]
    assert (await queue.call(f"POST /api/tasks/{task['id']}/complete", {})).code == "fence_required"
    for _ in range(4):
        await queue.pass_time(29)
        await queue.heartbeat(second)
    assert await queue.status(task) == "Executing"
    await queue.pass_time(4)
    assert (await queue.get(task))["failure_reason"] == "timeout"


@pytest.mark.requirement("C-052", "C-061", "C-062", "C-063", "C-064", "C-065", "C-066", "C-133")
async def test_queue_status_has_documented_fields(queue: Coscientist) -> None:
    await queue.fill("High", 2)
    await queue.fill("Low", 2)
    await queue.pass_time(10)
    await queue.complete(await queue.take("w1"))
    failed = await queue.take("w1")
    await queue.fail(failed, "safety violation", "not this one")
    await queue.pass_time(20)
    await queue.take("w2")
    assert await queue.query() == {
        "depth": {"high": 0, "medium": 0, "low": 1},
        "workers": {"active": 1, "idle": 1, "failed": 0},
        "throughput": 1,
        "average_wait_time": {"high": 10, "medium": None, "low": 30},
        "failed_tasks": [
            {
                "task_id": failed["task"]["id"],
                "agent_type": "Ranking",
                "reason": "safety violation",
                "error": "not this one",
                "worker_id": "w1",
                "at": at(10),
            }
        ],
        "capacity_warnings": [],
        "completions": 1,
        "paused": [],
        "calculated_at": at(30),
    }


@pytest.mark.requirement("C-049", "C-050", "C-067", "C-068", "C-069", "C-070", "C-071", "C-072", "C-073", "C-138")
async def test_results_of_completed_and_failed_tasks_have_documented_fields(queue: Coscientist) -> None:
    done, failed = await queue.submit("High", id="done"), await queue.submit("Low", id="failed")
    held = await queue.take("w1")
    await queue.pass_time(2)
    await queue.complete(held, {"winner": 1})
    assert await queue.result(done) == {
        "task_id": "done",
        "status": "Completed",
        "result": {"winner": 1},
        "error": None,
        "execution_time": 2,
        "worker_id": "w1",
        "completed_at": at(2),
    }
    await queue.fail(await queue.take("w1"), "invalid task parameters", "no hypothesis 12")
    result = await queue.result(failed)
    assert (result["task_id"], result["status"], result["error"]) == ("failed", "Failed", "no hypothesis 12")
    assert (result["result"], result["worker_id"], result["completed_at"]) == (None, "w1", at(2))


@pytest.mark.requirement("C-077")
async def test_submit_wakes_an_idle_worker(queue: Coscientist) -> None:
    await queue.configure(fallback_poll_sec=3600)
    waiting = asyncio.create_task(queue.request("idle", wait_sec=25))

    async def is_there() -> bool:
        return "idle" in await queue.workers()

    await until(is_there)
    task = await queue.submit()
    assert (await waiting)["task"]["id"] == task["id"]


@pytest.mark.requirement("C-079", "C-086", "C-087", "C-088", "C-199", "C-251")
async def test_task_is_assigned_when_its_dependencies_are_completed(queue: Coscientist) -> None:
    first, second = await queue.submit("Low", id="a"), await queue.submit("Low", id="b")
    last = await queue.submit("High", dependencies=["a", "b"])
    held = [await queue.take("w1"), await queue.take("w2")]
    assert await queue.request("w3") is None
    await queue.complete(held[0])
    assert await queue.request("w3") is None
    states = [await queue.status({"id": before}) for before in last["dependencies"]]
    assert sorted(states) == ["Completed", "Executing"]
    await queue.complete(held[1])
    events = (await queue.read(f"/api/events?task={last['id']}"))["events"]
    assert "task.ready" in [event["event"] for event in events]
    assert await queue.took("w3") == last["id"]
    assert {held[0]["task"]["id"], held[1]["task"]["id"]} == {first["id"], second["id"]}


@pytest.mark.requirement("C-089", "C-090", "C-091", "C-099", "C-127", "C-168", "C-171")
async def test_third_failure_dead_letters_the_task_until_it_is_retried(
    queue: Coscientist,
) -> None:
    task = await queue.submit(id="stubborn")
    for number, wait in ((1, 8), (2, 45), (3, 0)):
        held = await queue.take(f"w{number}")
        assert len(held["task"]["failure_history"]) == number - 1
        await queue.fail(held, "network error", f"reset {number}")
        await queue.pass_time(wait)
    assert await queue.status(task) == "Failed"
    (letter,) = await queue.dead_letters()
    assert (letter["task_id"], letter["reason"], letter["failure_count"]) == ("stubborn", "network error", 3)
    assert [(item["agent"], item["error"]) for item in letter["failure_history"]] == [
        ("w1", "reset 1"),
        ("w2", "reset 2"),
        ("w3", "reset 3"),
    ]
    await queue.ask("POST /api/dead-letters/stubborn/review", {"decision": "retry"})
    assert await queue.status(task) == "Pending"
    assert await queue.dead_letters() == []
    await queue.complete(await queue.take("w1"))


@pytest.mark.requirement("C-095", "C-096", "C-097", "C-028", "C-139", "C-182", "C-183", "C-184")
async def test_task_of_a_silent_worker_goes_to_another_with_its_progress(queue: Coscientist) -> None:
    await queue.submit(id="older")
    await queue.fail(await queue.take("w0"), "network error", "reset")
    await queue.pass_time(1)
    task = await queue.submit(id="long")
    held = await queue.take("w1")
    await queue.report(held, "progress", progress={"done": 3, "of": 10})
    await queue.pass_time(90)
    assert await queue.status({"id": "older"}) == "Pending", "it waits again, and has waited longer"
    lost = await queue.get(task)
    assert (lost["status"], lost["retry_count"], lost["failure_reason"]) == ("Pending", 1, "worker timeout")
    assert "w1" in lost["failure_history"][0]["note"]
    again = await queue.take("w2")
    assert (again["task"]["id"], again["task"]["progress"]) == ("long", {"done": 3, "of": 10})


@pytest.mark.requirement("C-098", "C-128", "C-129", "C-169")
async def test_delays_are_5_30_and_120_seconds_or_exponential_up_to_300(queue: Coscientist) -> None:
    async def delays(attempts: int, strategy: str) -> list[float]:
        policy = {"max_attempts": attempts, "backoff_strategy": strategy}
        task = await queue.submit(retry_policy=policy)
        found = []
        for number in range(attempts - 1):
            now = time_in((await queue.api.pass_time(0))["now"])
            failed = await queue.fail(await queue.take(f"w{number}"), "network error", "reset")
            found.append(round(datetime.fromisoformat(failed["available_at"]).timestamp() - now, 3))
            await queue.pass_time(451)
        await queue.complete(await queue.take("last"))
        assert await queue.status(task) == "Completed"
        return found

    for least, most, delay in zip((2.5, 15, 60), (7.5, 45, 180), await delays(4, "schedule"), strict=True):
        assert least <= delay <= most
    await queue.configure(**{"retry.jitter": False})
    assert await delays(4, "schedule") == [5, 30, 120]
    assert await delays(8, "exponential") == [10, 20, 40, 80, 160, 300, 300]


@pytest.mark.requirement("C-100", "C-116", "C-263")
async def test_repeated_failures_are_reported_as_a_pattern(queue: Coscientist) -> None:
    for number in range(3):
        await queue.submit("High", agent_type="Evolution")
        await queue.fail(await queue.take(f"w{number}"), "safety violation", f"forbidden compound {number}")
    (pattern,) = (await queue.read("/api/failures?by=signature"))["failures"]
    assert (pattern["total"], pattern["agents"]) == (3, ["w0", "w1", "w2"])
    (by_type,) = (await queue.read("/api/failures?by=type"))["failures"]
    assert (by_type["value"], by_type["total"], by_type["rate"]) == ("Evolution", 3, 1.0)


@pytest.mark.requirement("C-113", "C-114", "C-115", "C-116", "C-117")
async def test_documented_metrics_are_exposed(queue: Coscientist) -> None:
    await queue.fill("High", 3)
    await queue.pass_time(1)
    await queue.complete(await queue.take("w1"))
    await queue.fail(await queue.take("w1"), "safety violation", "no")
    await queue.pass_time(30)
    text = (await queue.api.call("GET", "/metrics?workspace=lab")).body.decode()
    for line in (
        'shiftwork_queue_depth{priority="high"} 1.0',
        'shiftwork_wait_seconds_count{type="Ranking"} 2.0',
        'agent_utilization{agent_id="w1"}',
        'tasks_failed_total{reason="safety_violation"} 1.0',
        'shiftwork_failure_rate{agent_type="Ranking"} 0.5',
        "shiftwork_completed_per_minute 0.2",
        'shiftwork_latency_seconds{quantile="p99"} 1.0',
    ):
        assert line in text, line


@pytest.mark.requirement("C-144", "C-145", "C-146", "C-147")
async def test_burst_of_fifty_generations_is_completed(queue: Coscientist) -> None:
    made = await queue.fill("Medium", 50, agent_type="Generation")
    assert (await queue.query())["depth"]["medium"] == 50
    workers = [f"w{n}" for n in range(5)]
    held = {worker: await queue.take(worker) for worker in workers}
    assert None not in held.values(), "every available worker gets one"
    done = []

    async def work(worker: str) -> None:
        assignment = held[worker]
        while assignment is not None:
            await queue.complete(assignment)
            done.append(assignment["task"]["id"])
            assignment = await queue.take(worker)

    await asyncio.gather(*map(work, workers))
    assert sorted(done) == sorted(made)
    status = await queue.query()
    assert (status["completions"], status["throughput"]) == (50, 50)


@pytest.mark.requirement("C-148", "C-149", "C-150", "C-151", "C-170")
async def test_tournament_matches_run_first_and_report_progress(queue: Coscientist) -> None:
    await queue.fill("Medium", 2)
    await queue.fill("Low", 2)
    matches = await queue.fill("High", 4, tags=["tournament-1"])
    assert (await queue.query())["depth"]["high"] == 4
    first = await queue.take("w1")
    failed = await queue.fail(first, "network error", "connection reset")
    await queue.pass_time(8)
    again = await queue.get(failed)
    assert (again["status"], again["priority"]) == ("Pending", "High")
    handed = []
    for number in range(4):
        assignment = await queue.take(f"w{number + 2}")
        handed.append(assignment["task"]["id"])
        await queue.complete(assignment)
        progress = await queue.read("/api/tags/tournament-1")
        assert (progress["done"], progress["total"]) == (number + 1, 4)
    assert sorted(handed) == sorted(matches)
