"""The co-scientist document on capacity, worker failure, alerts and overflow, from top to bottom."""

from collections.abc import AsyncIterator

import pytest

from shiftwork.views.view import time_in
from tests.acceptance.coscientist import Coscientist, served

CAPACITY = ("capacity.warning", "capacity.critical", "capacity.normal")


@pytest.fixture
async def queue(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coscientist]:
    async with served(store_url, monkeypatch) as opened:
        yield opened


async def _small(queue: Coscientist) -> None:
    """The same queue with a hundredth of the room."""
    await queue.configure(max_queue_size=100, priority_quotas={"high": 10, "medium": 50, "low": 40})


@pytest.mark.requirement("C-033", "C-124")
@pytest.mark.timeout(120)
async def test_task_1001_of_level_high_exceeds_its_quota(queue: Coscientist) -> None:
    settings = await queue.settings()
    assert [settings[f"priority_quotas.{level}"] for level in ("high", "medium", "low")] == [1000, 5000, 4000]
    await queue.fill("High", 1000)
    refused = await queue.refused("High")
    assert (refused.status, refused.json["facts"]["limit"]) == (429, 1000)
    await queue.submit("Medium")


@pytest.mark.requirement("C-034", "C-135")
async def test_supervisor_is_alerted_when_limits_are_approached(queue: Coscientist) -> None:
    await _small(queue)
    await queue.fill("Medium", 39)
    assert (await queue.read("/api/queue/backpressure"))["state"] == "normal"
    await queue.fill("Medium", 1)
    assert await queue.told(*CAPACITY) == ["capacity.warning"]
    pressure = await queue.read("/api/queue/backpressure")
    assert (pressure["state"], pressure["warnings"]) == ("warning", ["warning: medium 40 of 50"])
    (alert,) = await queue.alerts("capacity_warning")
    assert alert["message"] == "Capacity: 40 of 50 tasks wait (medium)"


@pytest.mark.requirement("C-035", "C-036", "C-075")
async def test_new_high_task_displaces_the_oldest_low_one(queue: Coscientist) -> None:
    await _small(queue)
    oldest = await queue.submit("Low")
    await queue.fill("Low", 39)
    await queue.fill("Medium", 50)
    await queue.fill("High", 10)
    assert (await queue.query())["depth"] == {"high": 10, "medium": 50, "low": 40}
    await queue.submit("High")
    assert (await queue.query())["depth"] == {"high": 11, "medium": 50, "low": 39}
    assert (await queue.get(oldest))["status"] == "Failed"


@pytest.mark.requirement("C-038")
async def test_warning_thresholds_are_configurable(queue: Coscientist) -> None:
    await _small(queue)
    await queue.configure(warning_at=0.5)
    await queue.fill("Medium", 24)
    assert (await queue.query())["capacity_warnings"] == []
    await queue.fill("Medium", 1)
    assert (await queue.query())["capacity_warnings"] == ["warning: medium 25 of 50"]


@pytest.mark.requirement("C-052", "C-061", "C-062", "C-066")
async def test_status_reports_depth_workers_and_warnings(queue: Coscientist) -> None:
    await _small(queue)
    for worker in ("w1", "w2", "w3", "w4"):
        await queue.register(worker)
    await queue.fill("High", 1)
    held = await queue.take("w1")
    for _ in range(3):
        await queue.pass_time(30)
        await queue.heartbeat(held)
        for worker in ("w2", "w3"):
            await queue.take(worker)
    await queue.fill("Low", 32)
    status = await queue.query()
    assert status["workers"] == {"active": 1, "idle": 2, "failed": 1}
    assert status["depth"] == {"high": 0, "medium": 0, "low": 32}
    assert status["capacity_warnings"] == ["warning: low 32 of 40"]


@pytest.mark.requirement("C-101", "C-261")
async def test_full_queue_refuses_with_429_and_continues(queue: Coscientist) -> None:
    await _small(queue)
    await queue.fill("Low", 40)
    for _ in range(5):
        refused = await queue.refused("Low")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "queue_full", "5")
        assert refused.json["hint"]
    await queue.complete(await queue.take("w1"))
    await queue.submit("Low")


@pytest.mark.requirement("C-118")
async def test_depth_above_the_threshold_raises_an_alert(queue: Coscientist) -> None:
    await queue.configure(**{"alerts.queue_depth": 10})
    await queue.fill("Medium", 10)
    await queue.pass_time(30)
    assert await queue.alerts("queue_depth") == []
    await queue.fill("Medium", 1)
    await queue.pass_time(30)
    assert len(await queue.alerts("queue_depth")) == 1


@pytest.mark.requirement("C-119", "C-185", "C-186")
async def test_pool_below_its_minimum_raises_an_alert(queue: Coscientist) -> None:
    await queue.configure(min_agents=2)
    await queue.register("w1")
    await queue.pass_time(30)
    (alert,) = await queue.alerts("pool_below_minimum")
    assert alert["message"] == "1 agents are live, at least 2 are required"
    assert await queue.told("pool.below_minimum") == ["pool.below_minimum"]


@pytest.mark.requirement("C-120")
async def test_failure_rate_above_the_threshold_raises_an_alert(queue: Coscientist) -> None:
    await queue.configure(**{"alerts.failure_rate": 0.2, "alerts.failure_count": 5})
    await queue.fill("Medium", 5)
    for _ in range(4):
        await queue.complete(await queue.take("w1"))
    await queue.pass_time(30)
    assert await queue.alerts("failure_rate") == []
    await queue.fail(await queue.take("w1"), "network", "connection reset")
    await queue.pass_time(30)
    (alert,) = await queue.alerts("failure_rate")
    assert alert["message"] == "1 of 5 attempts of type Ranking failed"


@pytest.mark.requirement("C-121")
async def test_task_stuck_in_executing_raises_an_alert(queue: Coscientist) -> None:
    task = await queue.submit("High", timeout=100)
    held = await queue.take("w1")
    for _ in range(4):
        await queue.pass_time(24)  # in all 96 of the 120 s it has
        await queue.heartbeat(held)
    await queue.pass_time(6)
    (alert,) = await queue.alerts("task_stuck")
    assert alert["task_id"] == task["id"]


async def test_alert_conditions_are_checked_every_thirty_seconds(queue: Coscientist) -> None:
    async def looked() -> tuple[int, float]:
        (job,) = [job for job in (await queue.read("/api/duties"))["items"] if job["name"] == "alerts"]
        return job["runs"], time_in(job["last_run_at"])

    await queue.pass_time(30)
    runs, at = await looked()
    await queue.pass_time(29)
    assert await looked() == (runs, at)
    await queue.pass_time(1)
    assert await looked() == (runs + 1, at + 30)


@pytest.mark.requirement("C-157", "C-159")
async def test_each_failure_emits_an_event_with_its_context(queue: Coscientist) -> None:
    task = await queue.submit("High")
    await queue.fail(await queue.take("w1"), "network", "connection reset")
    events = (await queue.read(f"/api/events?task={task['id']}"))["events"]
    (failed,) = [event for event in events if event["event"] == "task.attempt_failed"]
    assert (failed["task_id"], failed["reason"]) == (task["id"], "network error")
    outcome = {name: failed["data"][name] for name in ("error", "agent", "attempt", "type")}
    assert outcome == {"error": "connection reset", "agent": "w1", "attempt": 1, "type": "Ranking"}
    (recent,) = (await queue.query())["failed_tasks"]
    assert (recent["task_id"], recent["error"], recent["worker_id"]) == (task["id"], "connection reset", "w1")


@pytest.mark.requirement("C-175", "C-176", "C-177", "C-178", "C-179", "C-180")
async def test_worker_missing_three_checks_is_failed(queue: Coscientist) -> None:
    await queue.register("w1")
    assert await queue.workers() == {"w1": "idle"}
    task = await queue.submit("High")
    await queue.take("w1")
    assert await queue.workers() == {"w1": "active"}
    await queue.pass_time(89)
    assert await queue.workers() == {"w1": "active"}
    await queue.pass_time(1)
    assert await queue.workers() == {"w1": "failed"}
    assert (await queue.query())["workers"]["failed"] == 1
    (alert,) = await queue.alerts("agent_failed")
    assert alert["message"] == "Agent w1 failed"
    assert (await queue.get(task))["status"] == "Pending"
    assert (await queue.take("w2"))["task"]["id"] == task["id"]


@pytest.mark.requirement("C-173")
async def test_number_of_health_checks_is_a_setting(queue: Coscientist) -> None:
    await queue.configure(health_checks=1)
    await queue.register("w1")
    await queue.pass_time(29)
    assert await queue.workers() == {"w1": "idle"}
    await queue.pass_time(1)
    assert await queue.workers() == {"w1": "failed"}


@pytest.mark.requirement("C-125")
async def test_unresponsive_worker_loses_its_tasks_after_300_seconds(queue: Coscientist) -> None:
    assert (await queue.settings())["agent_timeout_sec"] == 300
    await queue.configure(heartbeat_timeout_sec=None)
    task = await queue.submit("High", timeout=9000)
    await queue.take("w1")
    await queue.pass_time(299)
    assert (await queue.get(task))["status"] == "Executing"
    await queue.pass_time(1)
    assert (await queue.get(task))["status"] == "Pending"


@pytest.mark.requirement("C-032", "C-037", "C-123", "C-189", "C-190")
@pytest.mark.timeout(120)
async def test_queue_warns_at_8000_is_critical_at_9500_and_full_at_10000(queue: Coscientist) -> None:
    async def total() -> list[str]:
        return [text for text in (await queue.query())["capacity_warnings"] if " total " in text]

    assert (await queue.settings())["max_queue_size"] == 10_000
    await queue.configure(priority_quotas={"high": None, "medium": None, "low": None})
    await queue.fill("Low", 7999)
    assert await total() == []
    await queue.submit("Low")
    assert await total() == ["warning: total 8000 of 10000"]
    await queue.fill("Low", 1499)
    assert await queue.told(*CAPACITY) == ["capacity.warning"]
    await queue.submit("Low")
    assert await total() == ["critical: total 9500 of 10000"]
    assert await queue.told(*CAPACITY) == ["capacity.warning", "capacity.critical"]
    await queue.fill("Low", 500)
    assert (await queue.query())["depth"] == {"high": 0, "medium": 0, "low": 10_000}
    refused = await queue.refused("Low")
    assert (refused.status, refused.code, refused.json["facts"]["limit"]) == (429, "queue_full", 10_000)


@pytest.mark.requirement("C-191", "C-192", "C-193", "C-194")
async def test_tasks_worth_preserving_are_displaced_last(queue: Coscientist) -> None:
    await queue.configure(max_queue_size=6)
    high = await queue.submit("High")
    depends = await queue.submit("Low", dependencies=[high["id"]])
    tried = await queue.submit("Low", agent_type="Evolution")
    await queue.fail(await queue.take("w1", agent_types=["Evolution"]), "network", "connection reset")
    await queue.pass_time(60)
    plain = await queue.submit("Low")
    await queue.pass_time(301)
    recent = await queue.submit("Low")
    await queue.submit("High")
    gone = []
    for _ in range(4):
        await queue.submit("High")
        for name, task in (("plain", plain), ("tried", tried), ("recent", recent), ("depends", depends)):
            if name not in gone and (await queue.get(task))["status"] == "Failed":
                gone.append(name)
    assert gone == ["plain", "tried", "recent", "depends"]
    assert (await queue.refused("High")).status == 429


@pytest.mark.requirement("C-195", "C-196", "C-197", "C-198")
async def test_displaced_tasks_are_dead_letters_until_there_is_room(queue: Coscientist) -> None:
    await queue.configure(max_queue_size=1)
    low = await queue.submit("Low")
    await queue.submit("High")
    (letter,) = (await queue.ask("GET /api/dead-letters"))["dead_letters"]
    assert (letter["task_id"], letter["reason"]) == (low["id"], "displaced")
    (alert,) = await queue.alerts("displaced")
    assert alert["task_id"] == low["id"]
    assert await queue.told("task.displaced") == ["task.displaced"]
    await queue.complete(await queue.take("w1"))
    await queue.pass_time(300)
    assert (await queue.get(low))["status"] == "Pending"
