"""The co-scientist document from configuration to quality requirements: recovery, timing and conflicts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.snapshots.copy import restore
from shiftwork.views.view import time_in
from tests.acceptance.coscientist import Coscientist, at, served
from tests.server.processes import ServerProcess, start

Step = Callable[[Coscientist], Awaitable[None]]


@pytest.fixture
async def queue(store_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Coscientist]:
    async with served(store_url, monkeypatch, snapshots=str(tmp_path / "memory")) as opened:
        yield opened


async def _max_queue_size(queue: Coscientist) -> None:
    await queue.configure(max_queue_size=1)
    await queue.submit("Low")
    assert (await queue.refused("Low")).code == "queue_full"


async def _priority_quotas(queue: Coscientist) -> None:
    await queue.configure(priority_quotas={"high": 1, "medium": None, "low": None})
    await queue.submit("High")
    assert (await queue.refused("High")).code == "queue_full"


async def _worker_timeout(queue: Coscientist) -> None:
    await queue.configure(agent_timeout_sec=10, heartbeat_timeout_sec=None)
    task = await queue.submit()
    await queue.take("w1")
    await queue.pass_time(10)
    assert await queue.status(task) == "Pending"


async def _heartbeat_interval(queue: Coscientist) -> None:
    await queue.configure(heartbeat_interval_sec=7)
    await queue.submit()
    assert (await queue.request("w1"))["heartbeat_interval"] == 7


async def _max_attempts(queue: Coscientist) -> None:
    await queue.configure(max_attempts=1)
    await queue.submit()
    assert (await queue.fail(await queue.take("w1"), "network error", "reset"))["status"] == "Failed"


async def _backoff(queue: Coscientist) -> None:
    exponential = {"strategy": "exponential", "initial_delay_sec": 1, "jitter": False}
    base_and_most = {"backoff_multiplier": 6, "max_delay_sec": 20}
    await queue.configure(**{f"retry.{key}": value for key, value in (exponential | base_and_most).items()})
    await queue.submit(retry_policy={"max_attempts": 4})
    for delay in (1, 6, 20):
        await queue.fail(await queue.take(f"w{delay}"), "network error", "reset")
        await queue.pass_time(delay - 0.5)
        assert await queue.request("w9") is None
        await queue.pass_time(5)


async def _persistence_interval(queue: Coscientist) -> None:
    await Coscientist(queue.api, "default").configure(**{"maintenance.snapshot_sec": 10})
    await queue.pass_time(10)
    before = len((await queue.read("/api/snapshots"))["snapshots"])
    await queue.pass_time(10)
    assert len((await queue.read("/api/snapshots"))["snapshots"]) == before + 1


async def _starvation_threshold(queue: Coscientist) -> None:
    await queue.configure(starvation_threshold_sec=60)
    starved = await queue.submit("Low")
    await queue.pass_time(60)
    await queue.submit("High")
    assert await queue.took("w1") == starved["id"]


@pytest.mark.requirement("C-122")
@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        ("max_queue_size", 10_000, _max_queue_size),
        ("priority_quotas.high", 1000, _priority_quotas),
        ("agent_timeout_sec", 300, _worker_timeout),
        ("heartbeat_interval_sec", 30, _heartbeat_interval),
        ("max_attempts", 3, _max_attempts),
        ("retry.backoff_multiplier", 2, _backoff),
        ("retry.max_delay_sec", 300, _backoff),
        ("maintenance.snapshot_sec", 60, _persistence_interval),
        ("starvation_threshold_sec", 3600, _starvation_threshold),
    ],
)
async def test_each_key_of_queue_config_has_its_value_and_effect(
    queue: Coscientist, key: str, value: float, change: Step
) -> None:
    assert (await queue.settings())[key] == value
    await change(queue)


class Caller:
    """A caller of a server that may be killed."""

    def __init__(self, server: ServerProcess, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self.server.url}{path}{'&' if '?' in path else '?'}workspace=lab"
        async with self.http.request(method, url, json=body) as answer:
            assert answer.status in {200, 201}, await answer.text()
            return await answer.json()

    async def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["id"]: task for task in (await self.ask("GET", "/api/tasks?limit=1000"))["tasks"]}

    async def take(self, worker: str) -> Any:
        return (await self.ask("POST", "/api/tasks/claim", {"worker_id": worker, "start": True}))["assignment"]

    async def end(self, assignment: Any, verb: str, **body: Any) -> None:
        stated = {"assignment_id": assignment["assignment_id"], **body}
        await self.ask("POST", f"/api/tasks/{assignment['task']['id']}/{verb}", stated)

    async def checkpoint(self) -> str:
        """The name of a snapshot taken now."""
        async with self.http.post(f"{self.server.url}/api/snapshots") as answer:
            assert answer.status == 201, await answer.text()
            return str((await answer.json())["name"])


@pytest.mark.timeout(180)
@pytest.mark.requirement("C-093", "C-103", "C-142", "C-152", "C-153", "C-154", "C-155", "C-156", "C-266")
async def test_queue_continues_from_its_last_checkpoint_after_a_crash(store_url: str, tmp_path: Path) -> None:
    options = ("--profile", "coscientist", "--snapshots", str(tmp_path))
    async with aiohttp.ClientSession() as http:
        async with await start(store_url, *options) as server:
            caller = Caller(server, http)
            await caller.ask("POST", "/api/agents", {"worker_id": "w1"})
            for number in range(4):
                await caller.ask("POST", "/api/tasks", _match(number, "High"))
            dead = await caller.take("w2")
            await caller.end(dead, "fail", reason="safety violation", error="no")
            checkpoint = await caller.checkpoint()
            await caller.ask("POST", "/api/tasks", _match(4, "Low"))
            held = await caller.take("w1")
            before = await caller.tasks()
            await server.kill()
        async with await start(store_url, *options) as server:
            caller = Caller(server, http)
            after = await caller.tasks()
            assert _versions(after) == _versions(before)
            kept = await _restored(tmp_path / checkpoint)
            assert len(kept) == 4
            assert all(_versions(after)[name] >= version for name, version in kept.items())
            letters = (await caller.ask("GET", "/api/dead-letters"))["dead_letters"]
            assert [letter["task_id"] for letter in letters] == [dead["task"]["id"]]
            registered = await caller.ask("POST", "/api/agents", {"worker_id": "w1"})
            assert (registered["worker_id"], registered["status"]) == ("w1", "idle")
            done = set()
            while got := await caller.take("w1") or await caller.take("w2"):
                await caller.end(got, "complete")
                done.add(got["task"]["id"])
            assert held["task"]["id"] in done, "what it held is assigned again"
            assert done == before.keys() - {dead["task"]["id"]}


def _versions(tasks: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: task["version"] for name, task in tasks.items()}


async def _restored(checkpoint: Path) -> dict[str, int]:
    """The tasks of a checkpoint and their versions, as a queue made from it has them."""
    copy = f"sqlite:///{checkpoint.parent}/restored.db"
    await restore(checkpoint, copy)
    async with Queue.open(copy, workspace="lab") as queue:
        tasks = (await queue.tasks.list()).tasks
        return {str(task.external_id): task.version for task in tasks}


def _match(number: int, priority: str) -> dict[str, Any]:
    return {"id": f"match-{number}", "agent_type": "Ranking", "priority": priority, "payload": {"n": number}}


@pytest.mark.requirement("C-154", "C-155", "C-187")
async def test_registering_again_releases_tasks_unless_the_worker_continues(queue: Coscientist) -> None:
    for worker in ("w1", "w2"):
        await queue.register(worker)
    task = await queue.submit()
    held = await queue.take("w1")
    assert (await queue.register("w1", agent_types=["Ranking"], restarted=False))["status"] == "active"
    await queue.heartbeat(held)
    assert (await queue.register("w1"))["status"] == "idle"
    assert await queue.history(task) == [
        "Pending → Assigned",
        "Assigned → Executing",
        "Executing → Failed",
        "Failed → Pending",
    ]
    stated = {"assignment_id": held["assignment_id"]}
    assert (await queue.call(f"POST /api/tasks/{task['id']}/complete", stated)).code == "lease_lost"
    assert await queue.took("w2") == task["id"]


@pytest.mark.requirement("C-160", "C-162", "C-163", "C-164", "C-165", "C-166", "C-167", "C-263")
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("temporary resource unavailable", "Retrying"),
        ("network error", "Retrying"),
        ("transient API failure", "Retrying"),
        ("invalid task parameters", "Failed"),
        ("safety violation", "Failed"),
        ("permanent resource error", "Failed"),
    ],
)
async def test_retry_decision_is_reported_in_document_names(queue: Coscientist, reason: str, status: str) -> None:
    task = await queue.submit()
    failed = await queue.fail(await queue.take("w1"), reason.capitalize(), "as told")
    assert (failed["status"], failed["failure_reason"], failed["error"]) == (status, reason, "as told")
    letters = [(letter["task_id"], letter["reason"]) for letter in await queue.dead_letters()]
    assert letters == ([(task["id"], reason)] if status == "Failed" else [])


@pytest.mark.requirement("C-161", "C-172", "C-181", "C-184", "C-245")
async def test_retry_prefers_another_worker_and_lost_work_goes_first(queue: Coscientist) -> None:
    for worker in ("w1", "w2"):
        await queue.register(worker)
    failed = await queue.submit()
    await queue.fail(await queue.take("w1"), "network error", "reset")
    await queue.pass_time(8)
    for worker in ("w1", "w2"):
        await queue.ask(f"POST /api/agents/{worker}/heartbeat")
    assert await queue.request("w1") is None
    held = await queue.take("w2")
    assert held["task"]["id"] == failed["id"]
    older = await queue.submit()
    await queue.pass_time(1)
    lost = await queue.submit()
    await queue.register("w3")
    begun = await queue.take("w3")
    assert begun["task"]["id"] == older["id"]
    gone = await queue.take("w4")
    assert gone["task"]["id"] == lost["id"]
    await queue.fail(begun, "network error", "reset")
    for _ in range(3):
        await queue.pass_time(30)
        await queue.ask("POST /api/agents/w2/heartbeat")
        await queue.ask("POST /api/agents/w3/heartbeat")
    assert (await queue.get(lost))["failure_reason"] == "worker timeout"
    assert await queue.status(older) == "Pending"
    assert await queue.took("w5") == lost["id"], "before what has waited longer"
    assert await queue.took("w6") == older["id"]


@pytest.mark.requirement("C-201", "C-202", "C-203", "C-204", "C-205", "C-223")
async def test_missing_dependency_is_awaited_and_raises_an_alert(queue: Coscientist) -> None:
    task = await queue.submit("High", id="final", dependencies=["semifinal"])
    await queue.pass_time(295)
    assert ((await queue.get(task))["blocked"], await queue.alerts("missing_dependency")) == (False, [])
    await queue.pass_time(5)
    blocked = await queue.get(task)
    assert (blocked["status"], blocked["blocked"], blocked["blocked_reason"]) == ("Pending", True, "missing_dependency")
    (alert,) = await queue.alerts("missing_dependency")
    assert (await queue.get({"id": alert["task_id"]}))["id"] == "final"
    assert alert["message"] == f"Task {alert['task_id']} is blocked: semifinal does not exist"
    assert await queue.told("task.blocked") == ["task.blocked"]
    await queue.submit("Low", id="semifinal")
    await queue.complete(await queue.take("w1"))
    assert ((await queue.get(task))["blocked"], await queue.took("w1")) == (False, "final")


@pytest.mark.requirement("C-206", "C-207", "C-208", "C-209")
async def test_dependents_of_failed_task_are_cancelled_and_chain_retried(queue: Coscientist) -> None:
    first = await queue.submit("High", id="first")
    then = await queue.submit("High", id="then", dependencies=["first"], created_by="agent:supervisor")
    await queue.fail(await queue.take("w1"), "safety violation", "no")
    cancelled = await queue.get(then)
    (letter,) = (await queue.read("/api/dead-letters"))["dead_letters"]
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("Cancelled", f"Dependency {letter['task_id']} failed")
    (alert,) = await queue.alerts("dependency_failed")
    assert alert["message"].endswith("1 tasks of agent:supervisor depend on it")
    await queue.ask("POST /api/dead-letters/first/review", {"decision": "retry", "chain": True})
    assert [await queue.status(task) for task in (first, then)] == ["Pending", "Pending"]
    for name in ("first", "then"):
        held = await queue.take("w2")
        assert held["task"]["id"] == name
        await queue.complete(held)


@pytest.mark.requirement("C-200", "C-210", "C-211")
async def test_cycle_is_refused_at_submit(queue: Coscientist) -> None:
    await queue.submit(id="a", dependencies=["b"])
    refused = await queue.refused("High", id="b", dependencies=["a"])
    assert (refused.status, refused.code) == (422, "circular_dependency")
    assert "Would create circular dependency" in refused.json["detail"]
    assert len((await queue.ask("GET /api/tasks"))["tasks"]) == 1


@pytest.mark.requirement("C-130", "C-140", "C-217", "C-218", "C-219", "C-220")
async def test_maintenance_runs_at_its_intervals(queue: Coscientist) -> None:
    async def runs() -> dict[str, tuple[int, float]]:
        listed = (await queue.read("/api/duties"))["items"]
        return {job["name"]: (job["runs"], time_in(job["last_run_at"])) for job in listed}

    periods = {"metrics": 30, "snapshot": 60, "displaced": 300, "stale": 600}
    await queue.pass_time(600)
    for name, period in periods.items():
        count, last = (await runs())[name]
        await queue.pass_time(period - 1)
        assert (await runs())[name] == (count, last), name
        await queue.pass_time(1)
        assert (await runs())[name] == (count + 1, last + period), name
        await queue.pass_time(600 - period)
    taken = [each["created_at"] for each in (await queue.read("/api/snapshots"))["snapshots"]]
    assert taken == sorted(taken, reverse=True)
    assert len(set(taken)) == len(taken) > 3


@pytest.mark.requirement("C-227", "C-228", "C-229", "C-230")
async def test_score_grows_with_age_and_urgent_task_preempts_others(queue: Coscientist) -> None:
    task = await queue.submit("Medium")
    scores = []
    for step in (300, 60, 60):
        await queue.pass_time(step)
        scores.append((await queue.get(task))["priority_score"])
    assert scores == [50, 45, 40], "smaller is better"
    held = await queue.take("w1")
    urgent = await queue.submit("Low", deadline=at(420 + 300))
    high = await queue.submit("High")
    await queue.pass_time(60)
    await queue.ask("POST /api/agents/w1/heartbeat")
    await queue.pass_time(60)
    await queue.ask("POST /api/agents/w1/heartbeat")
    assert (await queue.read(f"/api/tasks/{urgent['id']}/explain"))["position"] == 1
    await queue.pass_time(61)
    beat = await queue.report(held, "heartbeat")
    assert (beat["action"], beat["reason"]) == ("yield", f"{urgent['id']} is urgent")
    await queue.report(held, "release")
    assert [await queue.took("w1"), await queue.took("w2")] == [urgent["id"], high["id"]]


@pytest.mark.requirement("C-231", "C-232", "C-233")
async def test_same_parameters_are_merged_or_refused_within_the_window(queue: Coscientist) -> None:
    first = await queue.submit("Low", payload={"pair": [1, 2]})
    merged = await queue.submit("High", payload={"pair": [1, 2]})
    assert (merged["id"], merged["priority"]) == (first["id"], "High")
    assert (await queue.submit("High", payload={"pair": [2, 1]}))["id"] != first["id"]
    await queue.configure(**{"idempotency.on_duplicate": "reject"})
    refused = await queue.refused("Low", payload={"pair": [1, 2]})
    assert (refused.status, refused.code) == (409, "duplicate_task")
    await queue.pass_time(3600)
    assert (await queue.submit("Low", payload={"pair": [1, 2]}))["id"] != first["id"]


@pytest.mark.requirement("C-235", "C-236", "C-237", "C-238", "C-254")
async def test_batch_is_accepted_whole_or_not_at_all_and_keeps_its_order(queue: Coscientist) -> None:
    batch = [queue.task("High", agent_type="Generation") for _ in range(5)]
    refused = await queue.call("POST /api/tasks", [*batch, queue.task("Urgent")])
    assert (refused.status, (await queue.ask("GET /api/tasks"))["tasks"]) == (422, [])
    made = [task["id"] for task in await queue.ask("POST /api/tasks", batch)]
    assert [await queue.took(f"w{number}") for number in range(5)] == made


@pytest.mark.requirement("C-030", "C-240", "C-253")
async def test_one_of_a_hundred_workers_gets_the_task_and_one_result_counts(queue: Coscientist) -> None:
    task = await queue.submit()
    answers = await asyncio.gather(*(queue.request(f"w{number}") for number in range(100)))
    (assignment,) = [answer for answer in answers if answer is not None]
    assert assignment["task"]["version"] == task["version"] + 1
    await queue.acknowledge(assignment)
    await queue.complete(assignment, {"by": 1})
    stated = {"assignment_id": assignment["assignment_id"], "reason": "network error"}
    assert (await queue.call(f"POST /api/tasks/{task['id']}/fail", stated)).status == 409
    assert (await queue.result(task))["result"] == {"by": 1}


@pytest.mark.requirement("C-246", "C-247")
async def test_update_with_outdated_version_is_refused(queue: Coscientist) -> None:
    task = await queue.submit("Low")
    path = f"/api/tasks/{task['id']}?workspace=lab"
    read = {"If-Match": f'"{task["version"]}"'}
    changed = await queue.api.call("PATCH", path, {"priority": "High"}, headers=read)
    assert (changed.json["priority"], changed.json["version"]) == ("High", task["version"] + 1)
    assert (await queue.api.call("PATCH", path, {"priority": "Medium"}, headers=read)).code == "version_conflict"
    assert (await queue.get(task))["priority"] == "High"


@pytest.mark.requirement("C-107", "C-110", "C-145", "C-249", "C-252", "C-264")
async def test_no_task_is_lost_with_120_concurrent_workers(queue: Coscientist) -> None:
    made = await queue.fill("Medium", 240)
    workers = [f"w{number}" for number in range(120)]
    held = await asyncio.gather(*(queue.take(worker) for worker in workers))
    assert (await queue.query())["workers"] == {"active": 120, "idle": 0, "failed": 0}
    assert len({assignment["task"]["id"] for assignment in held}) == 120
    done = [assignment["task"]["id"] for assignment in held]

    async def work(worker: str, assignment: Any) -> None:
        await queue.complete(assignment)
        while (assignment := await queue.take(worker)) is not None:
            done.append(assignment["task"]["id"])
            await queue.complete(assignment)

    await asyncio.gather(*map(work, workers, held))
    assert sorted(done) == sorted(made)
    assert (await queue.query())["completions"] == 240
    steps = (await queue.ask(f"GET /api/tasks/{made[0]}/history"))["transitions"]
    assert [step["to"] for step in steps] == ["Assigned", "Executing", "Completed"]
    assert all(step["at"] == at(0) and step["actor"].startswith("agent:w") for step in steps)
