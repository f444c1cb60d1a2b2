"""How long a lease lasts, and what happens to the task of a silent agent."""

import pytest

from shiftwork import Completion, Queue
from shiftwork.model.errors import LeaseLost
from shiftwork.model.history import Event
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, finish, states, take

PATIENCE = {"standard": 90, "factory": 90, "coscientist": 90, "aegis": 75, "loki": 3600, "redis": 300}
"""Seconds of silence after which each document takes a started task away."""


async def events_of(queue: Queue, task_id: str, name: str) -> list[Event]:
    return [event for event in (await queue.tasks.history(task_id)).events if name in event.names]


@pytest.mark.requirement("F-153", "F-154", "F-155", "F-157", "F-158")
async def test_ninety_seconds_of_silence_fail_the_attempt(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code")).id
    await take(factory)
    await pass_time(factory, clock, 89)
    assert (await factory.get(task_id)).status == "running"
    await pass_time(factory, clock, 1)
    task = await factory.get(task_id)
    assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "heartbeat_timeout")
    assert (await states(factory, task_id))[-3:] == ["running", "failed", "retrying"]


@pytest.mark.requirement("F-150", "F-151", "F-152")
async def test_heartbeat_keeps_the_lease_and_carries_progress(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    assignment = await take(queue)
    assert assignment.heartbeat_interval_sec == 30
    for progress in ({"pct": 40}, None, None):
        await pass_time(queue, clock, 60)
        assert (await queue.heartbeat(assignment.token, progress)).action == "continue"
    task = await queue.get(task_id)
    assert (task.status, task.claim.heartbeat_at, task.progress) == ("running", clock(), {"pct": 40})


@pytest.mark.parametrize("profile", PATIENCE)
async def test_profile_decides_whether_silence_costs_an_attempt(queue: Queue, clock: MovedClock, profile: str) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    await take(queue)
    await pass_time(queue, clock, PATIENCE[profile] - 1)
    assert (await queue.get(task_id)).status == "running"
    await pass_time(queue, clock, 1)
    task = await queue.get(task_id)
    assert task.claim.agent_id is None
    assert task.attempts == (0 if profile in {"loki", "redis"} else 1)


AFTER_DEATH = {
    "standard": ("retrying", 1, ["running", "failed", "retrying"]),
    "factory": ("retrying", 1, ["running", "failed", "retrying"]),
    "coscientist": ("ready", 1, ["running", "failed", "ready"]),
    "aegis": ("failed", 1, ["claimed", "running", "failed"]),
    "loki": ("ready", 0, ["claimed", "running", "ready"]),
    "redis": ("ready", 0, ["claimed", "running", "ready"]),
}
"""State, attempts and last states of a task whose worker's process died, in each profile."""


@pytest.mark.parametrize("profile", AFTER_DEATH)
async def test_dead_process_costs_the_same_as_silence(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    await take(queue, "victim", runtime_id="host-1")
    await queue.runtimes.report_gone("host-1")
    task = await queue.get(task_id)
    status, attempts, path = AFTER_DEATH[profile]
    assert (task.status, task.attempts, (await states(queue, task_id))[-3:]) == (status, attempts, path)
    assert [agent.status for agent in await queue.agents.list()] == ["failed"]
    if attempts:
        (failure,) = task.failure_history
        assert failure.agent == "victim"
        assert "victim" in (failure.note or "")


@pytest.mark.requirement("F-166", "C-099", "C-127")
@pytest.mark.parametrize("profile", ["standard", "factory", "coscientist"])
async def test_task_killing_its_worker_runs_at_most_max_attempts_times(
    queue: Queue, clock: MovedClock, profile: str
) -> None:
    await queue.settings.use_profile(profile)
    task_id = (await queue.submit(type="code")).id
    runs = 0
    while assignments := await queue.claim(f"worker-{runs}", start=True, runtime_id=f"host-{runs}"):
        assert [assignment.id for assignment in assignments] == [task_id]
        await queue.runtimes.report_gone(f"host-{runs}")
        runs += 1
        await pass_time(queue, clock, 60)
    assert (runs, (await queue.get(task_id)).status) == (3, "dead_lettered")


@pytest.mark.requirement("A-072", "A-017")
async def test_aegis_stops_after_two_daemon_crashes(aegis: Queue) -> None:
    await aegis.submit(type="agent")
    for _ in range(2):
        await take(aegis, runtime_id="laptop")
        await aegis.runtimes.report_gone("laptop")
    assert not await aegis.claim("worker", runtime_id="laptop")
    assert (await aegis.status()).counts == {"failed": 2}


@pytest.mark.parametrize("profile", ["loki", "redis"])
async def test_loki_and_redis_reclaim_without_cost_at_most_max_reclaims_times(
    queue: Queue, clock: MovedClock, profile: str
) -> None:
    await queue.settings.use_profile(profile)
    await queue.settings.set("max_reclaims", 2)
    task_id = (await queue.submit(type="code", idempotency_key="k")).id
    attempts = []
    for n in range(3):
        await take(queue, runtime_id=f"host-{n}")
        await queue.runtimes.report_gone(f"host-{n}")
        attempts.append((await queue.get(task_id)).attempts)
    assert attempts == [0, 0, 1]


async def test_unstarted_assignment_costs_nothing_when_its_worker_dies(coscientist: Queue) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await coscientist.claim("victim", runtime_id="host-1")
    await coscientist.runtimes.report_gone("host-1")
    task = await coscientist.get(task_id)
    assert (task.status, task.attempts) == ("ready", 0)
    assert (await states(coscientist, task_id))[-2:] == ["failed", "ready"]


@pytest.mark.requirement("C-176", "C-180")
async def test_agent_of_dead_process_is_failed_until_its_next_claim(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.agents.register(id="worker")
    await take(queue, runtime_id="host-1")
    await queue.runtimes.report_gone("host-1")
    assert [(agent.id, agent.status) for agent in await queue.agents.list()] == [("worker", "failed")]
    assert [alert.message for alert in await queue.alerts.list(kind="agent_failed")] == ["Agent worker failed"]
    assert [runtime.status for runtime in await queue.runtimes.list()] == ["offline"]
    await take(queue, runtime_id="host-2")
    assert [(agent.id, agent.status) for agent in await queue.agents.list()] == [("worker", "active")]


async def test_agent_with_work_in_another_process_is_not_failed(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    await queue.agents.register(id="worker", max_concurrent_tasks=2)
    await take(queue, runtime_id="host-1")
    await take(queue, runtime_id="host-2")
    await queue.runtimes.report_gone("host-1")
    assert [agent.status for agent in await queue.agents.list()] == ["active"]


@pytest.mark.parametrize("state", ["claimed", "running"])
async def test_released_task_is_ready_again_without_cost(queue: Queue, state: str) -> None:
    task_id = (await queue.submit(type="code")).id
    (assignment,) = await queue.claim("worker", start=state == "running")
    assert (await queue.release(assignment.token, "deploy")).status == "ready"
    task = await queue.get(task_id)
    assert (task.attempts, task.failure_history, task.claim.agent_id) == (0, [], None)
    assert (await take(queue, "other")).id == task_id


@pytest.mark.requirement("R-018", "R-019", "R-021", "R-024", "R-025", "R-052", "R-059")
async def test_redis_profile_reclaims_after_five_minutes_without_acknowledgement(
    streams: Queue, clock: MovedClock
) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    lost = await take(streams, "consumer-1")
    await pass_time(streams, clock, 299)
    await streams.heartbeat(lost.token)
    assert not await streams.claim("consumer-2")
    await pass_time(streams, clock, 1)
    assert (await states(streams, task_id))[-2:] == ["running", "ready"]
    assert await events_of(streams, task_id, "task.reclaimed") == []
    fresh = await take(streams, "consumer-2")
    (expired,) = await events_of(streams, task_id, "task.lease_expired")
    (reclaimed,) = await events_of(streams, task_id, "task.reclaimed")
    assert expired.seq < reclaimed.seq
    assert reclaimed.data == {
        "original_consumer": "consumer-1",
        "new_consumer": "consumer-2",
        "message_id": fresh.token,
    }
    with pytest.raises(LeaseLost):
        await streams.complete(lost.token)
    assert (await streams.complete(fresh.token)).status == "completed"
    assert await events_named(streams, "task.completed") == [task_id]


async def test_attempt_is_counted_after_max_reclaims(streams: Queue, clock: MovedClock) -> None:
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    attempts = []
    for _ in range(5):
        await take(streams)
        await pass_time(streams, clock, 300)
        attempts.append((await streams.get(task_id)).attempts)
    assert attempts == [0, 0, 0, 0, 1]


@pytest.mark.requirement("L-044", "L-045")
async def test_loki_claim_expires_with_the_task_timeout(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="eng-backend", timeout_sec=600)).id
    await take(loki, "a")
    await pass_time(loki, clock, 599)
    assert not await loki.claim("b")
    await pass_time(loki, clock, 1)
    assert (await take(loki, "b")).id == task_id
    assert (await loki.get(task_id)).attempts == 0


@pytest.mark.requirement("F-080", "F-149")
async def test_claim_not_started_in_a_minute_fails(factory: Queue, clock: MovedClock) -> None:
    task_id = (await factory.submit(type="code")).id
    await factory.claim("worker")
    await pass_time(factory, clock, 59)
    assert (await factory.get(task_id)).status == "claimed"
    await pass_time(factory, clock, 1)
    task = await factory.get(task_id)
    assert (task.status, task.attempts, task.failure_reason) == ("retrying", 1, "claim_expired")


@pytest.mark.requirement("C-014", "C-031", "C-060", "C-081", "C-221", "C-242")
async def test_assignment_not_started_in_five_seconds_is_withdrawn_without_cost(
    coscientist: Queue, clock: MovedClock
) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    (assignment,) = await coscientist.claim("slow")
    assert assignment.ack_required_by == clock() + 5
    await pass_time(coscientist, clock, 4.5)
    assert (await coscientist.get(task_id)).status == "claimed"
    await pass_time(coscientist, clock, 0.5)
    assert (await states(coscientist, task_id))[-3:] == ["claimed", "failed", "ready"]
    task = await coscientist.get(task_id)
    assert (task.attempts, task.failure_reason) == (0, "claim_expired")
    assert (await take(coscientist, "quick")).id == task_id
    with pytest.raises(LeaseLost):
        await coscientist.start(assignment.token)


@pytest.mark.requirement("C-045", "C-174", "C-222")
async def test_coscientist_allows_120_percent_of_type_timeout(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("timeout_sec", 100, type="Generation")
    task_id = (await coscientist.submit(type="Generation")).id
    assignment = await take(coscientist)
    assert assignment.execution_deadline == clock() + 120
    for step in (60, 59):
        await pass_time(coscientist, clock, step)
        assert (await coscientist.heartbeat(assignment.token)).action == "continue"
    await pass_time(coscientist, clock, 1)
    task = await coscientist.get(task_id)
    assert (task.status, task.failure_reason) == ("retrying", "timeout")


async def test_task_timeout_ends_the_attempt_despite_heartbeats(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", timeout_sec=300)).id
    assignment = await take(queue)
    for _ in range(5):
        await pass_time(queue, clock, 60)
        await queue.heartbeat(assignment.token)
    (failure,) = (await queue.get(task_id)).failure_history
    assert (failure.reason, failure.error) == ("timeout", "Timeout after 300s")


@pytest.mark.requirement(
    "C-028", "C-095", "C-096", "C-139", "C-178", "C-181", "C-182", "C-183", "C-155", "C-187"
)  # fmt: skip
async def test_task_of_a_silent_worker_is_ready_at_once_with_its_name(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    await take(coscientist, "silent")
    await pass_time(coscientist, clock, 90)
    task = await coscientist.get(task_id)
    assert (task.status, task.attempts) == ("ready", 1)
    assert "silent" in (task.failure_history[0].note or "")
    assert task.failure_history[0].agent == "silent"
    assert (await take(coscientist, "other")).id == task_id


@pytest.mark.requirement("C-248")
async def test_report_under_lost_lease_is_counted_and_logged(
    coscientist: Queue, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = (await coscientist.submit(type="Ranking")).id
    lost = await take(coscientist, "silent")
    await pass_time(coscientist, clock, 90)
    live = await take(coscientist, "other")
    with caplog.at_level("INFO"), pytest.raises(LeaseLost):
        await coscientist.complete(lost.token)
    assert coscientist.engine.counters["lease_lost"] == 1
    (line,) = [vars(record) for record in caplog.records if "lease_lost" in record.getMessage()]
    assert (line["side_task"], line["side_fence"], line["side_live_fence"]) == (task_id, lost.fence, live.fence)


@pytest.mark.requirement("C-184")
@pytest.mark.parametrize("known", [False, True], ids=["silent", "dead"])
async def test_task_of_a_lost_worker_goes_to_the_front_of_its_level(
    coscientist: Queue,
    clock: MovedClock,
    known: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    async def submit(priority: float, n: int) -> str:
        return (await coscientist.submit(type="Ranking", priority=priority, payload={"n": n})).id

    first = await submit(50, 1)
    clock.advance(1)
    lost = await submit(50, 2)
    high = await submit(20, 3)
    await coscientist.agents.register(id="silent", max_concurrent_tasks=3)
    tokens = {a.id: a.token for a in await coscientist.claim("silent", 3, start=True, runtime_id="host-1")}
    await coscientist.batch.release([tokens[first], tokens[high]])
    if known:
        await coscientist.runtimes.report_gone("host-1")
    else:
        await pass_time(coscientist, clock, 90)
    assert [await finish(coscientist, "other") for _ in range(3)] == [high, lost, first]


@pytest.mark.requirement("C-111")
async def test_at_most_once_task_is_never_started_twice(coscientist: Queue, clock: MovedClock) -> None:
    task_id = (await coscientist.submit(type="Ranking", delivery="at_most_once")).id
    await take(coscientist, "silent")
    await pass_time(coscientist, clock, 90)
    task = await coscientist.get(task_id)
    assert (task.status, task.failure_reason) == ("dead_lettered", "delivery_unknown")
    assert not await coscientist.claim("other")


async def test_unstarted_at_most_once_task_goes_to_another_agent(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", delivery="at_most_once")).id
    await queue.claim("silent")
    await pass_time(queue, clock, 60)
    await pass_time(queue, clock, 15)
    assert (await take(queue, "other")).id == task_id


async def test_returning_worker_gets_lease_lost(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    zombie = await take(queue, "zombie")
    await pass_time(queue, clock, 90)
    await pass_time(queue, clock, 15)
    fresh = await take(queue, "fresh")
    held = await queue.get(fresh.id)
    for write in (queue.complete, queue.fail, queue.release, queue.start):
        with pytest.raises(LeaseLost):
            await write(zombie.token)
        assert await queue.get(fresh.id) == held
    assert (await queue.heartbeat(zombie.token)).action == "lost"
    assert queue.engine.counters["lease_lost"] == 5
    done = await queue.complete(fresh.token, {"by": "fresh"})
    assert (done.status, done.repeated) == ("completed", False)
    assert (await queue.result(fresh.id)).data == {"by": "fresh"}


async def test_heartbeat_of_lost_claim_does_not_change_the_task(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    zombie = await take(queue, "zombie")
    await queue.runtimes.report_gone("zombie")
    await pass_time(queue, clock, 15)
    await take(queue, "fresh")
    version = (await queue.get(task_id)).version
    await queue.heartbeat(zombie.token)
    assert (await queue.get(task_id)).version == version


async def test_one_runtime_heartbeat_keeps_all_its_leases(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    await queue.agents.register(id="worker", max_concurrent_tasks=3)
    held = await queue.claim("worker", 3, start=True, runtime_id="host-1")
    for _ in range(3):
        await pass_time(queue, clock, 60)
        answer = await queue.runtimes.heartbeat("host-1", [assignment.token for assignment in held])
        assert (answer.cancel, answer.lost) == ({}, [])
    await queue.cancel(held[0].id, "obsolete")
    answer = await queue.runtimes.heartbeat("host-1", [assignment.token for assignment in held])
    assert answer.cancel == {held[0].token: "obsolete"}


@pytest.mark.parametrize("first", ["zombie", "fresh"])
async def test_late_result_in_the_same_batch_does_not_replace_the_live_one(queue: Queue, first: str) -> None:
    """A server joins the calls of its agents: their order must not matter."""
    task_id = (await queue.submit(type="code", retry={"strategy": "immediate"})).id
    held = {"zombie": await take(queue, "zombie")}
    await queue.runtimes.report_gone("zombie")
    held["fresh"] = await take(queue, "fresh")
    order = sorted(held, key=lambda name: name != first)
    outcomes = await queue.batch.complete([Completion({"by": name}, token=held[name].token) for name in order])
    answers = dict(zip(order, outcomes, strict=True))
    assert isinstance(answers["zombie"].error, LeaseLost)
    assert answers["fresh"].status == "completed"
    assert (await queue.result(task_id)).data == {"by": "fresh"}


async def test_claim_named_twice_is_started_and_released_once(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    (held,) = await queue.claim("worker")
    for verb, name in ((queue.batch.start, "started"), (queue.batch.release, "released")):
        outcomes = await verb([held.token, held.token])
        assert [(outcome.error, outcome.repeated) for outcome in outcomes] == [(None, False), (None, True)]
        assert len([event for event in (await queue.tasks.history(task_id)).events if event.verb == name]) == 1
    assert (await queue.get(task_id)).status == "ready"
