"""Queue status: depth, workers, throughput, waits and failures, and its cost."""

import pytest

from shiftwork import Queue
from shiftwork.observe import policy, status
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, finish, take


async def test_empty_queue_has_a_status(queue: Queue, clock: MovedClock) -> None:
    found = await queue.status()
    assert (found.counts, found.depth) == ({}, {"high": 0, "medium": 0, "low": 0, "total": 0})
    assert (found.completions, found.completed_last_minute, found.completed_per_minute) == (0, 0, 0)
    assert found.average_wait_sec == {"high": None, "medium": None, "low": None}
    assert (found.recent_failures, found.capacity_warnings, found.counted_at) == ([], [], clock())


@pytest.mark.requirement("C-188")
async def test_reported_slots_change_with_the_workers(coscientist: Queue) -> None:
    await coscientist.agents.register(id="a", max_concurrent_tasks=3)
    await coscientist.agents.register(id="b", max_concurrent_tasks=2)
    await coscientist.agents.register(id="c", max_concurrent_tasks=None)
    await coscientist.submit(type="Ranking")
    await take(coscientist, "a")
    assert (await coscientist.status()).slots == {"total": 5, "free": 4, "unlimited": 1}
    await coscientist.agents.set_status("b", "failed")
    assert (await coscientist.status()).slots == {"total": 3, "free": 2, "unlimited": 1}
    await coscientist.agents.set_status("a", "draining")
    assert (await coscientist.status()).slots == {"total": 3, "free": 0, "unlimited": 1}


@pytest.mark.requirement("C-063")
async def test_status_reports_completions_of_last_minute_and_rate(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 9)
    for _ in range(4):
        await finish(queue)
    clock.advance(100)
    for _ in range(5):
        await finish(queue)
        clock.advance(10)
    found = await queue.status()
    assert found.completed_last_minute == 5
    assert found.completed_per_minute == 9 / 5
    clock.advance(300)
    found = await queue.status()
    assert (found.completed_last_minute, found.completed_per_minute, found.completions) == (0, 0, 9)


async def test_completions_of_other_workspaces_do_not_count(queue: Queue) -> None:
    await queue.submit(type="code")
    await finish(queue)
    found = await queue.in_workspace("other").status()
    assert (found.completions, found.completed_last_minute, found.recent_failures) == (0, 0, [])


async def test_busy_queue_is_measured_over_its_newest_events(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two completions every ten seconds; only the last 40 s are read."""
    monkeypatch.setattr(status, "NEWEST", 24)
    for _ in range(40):
        await queue.submit_many([{"type": "code"}] * 2)
        await finish(queue)
        await finish(queue)
        clock.advance(10)
    found = await queue.status()
    assert found.completed_last_minute == pytest.approx(12)
    assert found.completed_per_minute == pytest.approx(12)


@pytest.mark.requirement("C-064")
async def test_average_wait_is_reported_by_level(coscientist: Queue, clock: MovedClock) -> None:
    for n, priority in enumerate((10, 10, 90)):
        await coscientist.submit(type="Ranking", priority=priority, payload={"n": n})
    await coscientist.agents.register(id="worker", max_concurrent_tasks=9)
    for _ in range(3):
        clock.advance(20)
        await take(coscientist)
    assert (await coscientist.status()).average_wait_sec == {"high": 30, "medium": None, "low": 60}


async def test_retry_does_not_lengthen_the_reported_wait(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    clock.advance(4)
    await queue.fail((await take(queue)).token, "crash")
    await pass_time(queue, clock, 60)
    await take(queue)
    assert (await queue.status()).average_wait_sec["medium"] == 4


@pytest.mark.requirement("C-065")
async def test_recent_failures_are_listed_with_task_and_error(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.fail((await take(coscientist, "w1")).token, "network", "no route to host")
    (failure,) = (await coscientist.status()).recent_failures
    assert (failure.task_id, failure.type, failure.reason) == (task_id, "Ranking", "network")
    assert (failure.error, failure.agent_id, failure.at) == ("no route to host", "w1", clock())


async def test_only_the_last_ten_failures_are_listed_newest_first(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("circuit_breaker", None)
    buried = []
    for _ in range(12):
        buried.append(await dead_letter(queue))
        clock.advance(1)
    assert [failure.task_id for failure in (await queue.status()).recent_failures] == buried[:1:-1]


async def test_archived_completions_are_counted(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 10)
    await queue.submit_many([{"type": "code"}] * 2)
    await finish(queue)
    await pass_time(queue, clock, 10)
    await finish(queue)
    found = await queue.status()
    assert (found.completions, found.archived, found.counts) == (2, 1, {"completed": 1})


async def test_large_queue_is_counted_once_per_period(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FEW", 2)
    await queue.submit_many([{"type": "code"}] * 3)
    began = clock()
    assert (await queue.status()).counts == {"ready": 3}
    await finish(queue)
    clock.advance(29)
    found = await queue.status()
    assert (found.counts, found.counted_at, found.calculated_at) == ({"ready": 3}, began, clock())
    assert found.completed_last_minute == 1
    assert (await queue.status(fresh=True)).counts == {"ready": 2, "completed": 1}
    await finish(queue)
    clock.advance(30)
    found = await queue.status()
    assert (found.counts, found.counted_at) == ({"ready": 1, "completed": 2}, clock())


async def test_small_queue_is_counted_on_every_request(queue: Queue) -> None:
    for count in (1, 2):
        await queue.submit(type="code")
        assert (await queue.status()).counts == {"ready": count}


@pytest.mark.requirement("C-061", "C-113")
async def test_depth_counts_tasks_by_their_escalated_level(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.submit(type="Ranking", priority=70)
    first = await coscientist.submit(type="Ranking", priority=50, payload={"n": 1})
    await coscientist.submit(type="Ranking", priority=70, payload={"n": 2}, dependencies=[first.id])
    depths = []
    for minutes in (0, 10, 10):
        await pass_time(coscientist, clock, 60 * minutes)
        depths.append((await coscientist.status()).depth)
    assert depths[0] == {"high": 0, "medium": 1, "low": 2, "total": 3}
    assert depths[1] == {"high": 0, "medium": 2, "low": 1, "total": 3}  # what is not in line yet counts as submitted
    assert depths[2] == {"high": 2, "medium": 0, "low": 1, "total": 3}
    assert (await coscientist.status()).tiers == {"normal": 1, "low": 2}


async def test_depth_counts_urgent_and_targeted_tasks_by_level(coscientist: Queue, clock: MovedClock) -> None:
    for priority in (20, 50, 70):
        for agent in (None, "ada"):
            payload = {"of": f"{agent} {priority}"}
            fields = {"priority": priority, "deadline": clock() + 60, "target_agent_id": agent, "payload": payload}
            await coscientist.submit({"type": "Ranking", **fields})
    assert (await coscientist.status()).depth == {"high": 2, "medium": 2, "low": 2, "total": 6}
    assert (await coscientist.status()).types == {"Ranking": {"ready": 6}}
