"""Metrics: a scripted history with known answers, counted exactly once, and bounded if clients invent
names.
"""

from __future__ import annotations

import re

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.maintenance import loop, model
from shiftwork.model.reports import Completion
from shiftwork.observe import metrics as measuring
from shiftwork.observe.metric_catalogue import BUCKETS, MAX_SERIES, METRICS
from shiftwork.observe.model import KEPT_SNAPSHOTS, Metrics, Sample
from shiftwork.store import statements
from shiftwork.store.postgres import PostgresStore
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, finish, take

DAY = 86_400.0


async def value(queue: Queue, name: str, **labels: str) -> float | None:
    return (await queue.metrics.read()).value(name, **labels)


async def count_the_log(queue: Queue) -> None:
    """Count the log, as the maintenance job does."""
    await loop.run_once(queue.engine, force=True)


def test_metric_names_and_labels_match_the_document() -> None:
    documented = {
        "task_queue_depth": ("status", "priority_tier"),
        "task_queue_wait_seconds": ("quantile",),
        "tasks_completed_total": ("type",),
        "tasks_failed_total": ("reason",),
        "tasks_dead_lettered_total": (),
        "task_cost_usd": ("type", "agent", "model"),
        "daily_spend_usd": (),
        "budget_remaining_usd": ("agent",),
        "agent_utilization": ("agent_id",),
        "agent_heartbeat_misses_total": ("agent_id",),
        "agent_claim_success_rate": ("agent_id",),
    }
    assert {name: METRICS[name].labels for name in documented} == documented


async def test_every_sample_is_in_the_catalogue_with_its_labels(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="worker", budget_remaining_usd=5)
    await queue.submit(type="code")
    await finish(queue)
    await dead_letter(queue)
    clock.advance(1)
    for sample in (await queue.metrics.read()).samples:
        metric = METRICS[measuring.metric_of(sample.name)]
        assert set(sample.labels) - {"le"} == set(metric.labels), sample
        assert not metric.of_process


@pytest.mark.requirement("F-252", "C-113")
async def test_queue_depth_is_counted_by_state_tier_and_priority(queue: Queue) -> None:
    await queue.submit_many([{"type": "code", "priority": 50}] * 3 + [{"type": "code", "priority": 5}])
    await queue.submit(type="code", priority=70)
    await take(queue)
    found = await queue.metrics.read()
    assert found.value("task_queue_depth", status="ready", priority_tier="normal") == 3
    assert found.value("task_queue_depth", status="running", priority_tier="critical") == 1
    assert found.value("task_queue_depth", status="ready", priority_tier="low") == 1
    assert [found.value("shiftwork_queue_depth", priority=level) for level in ("high", "medium", "low")] == [0, 3, 1]


@pytest.mark.requirement("F-253", "C-114")
async def test_wait_quantiles_cover_time_from_ready_to_claimed(queue: Queue, clock: MovedClock) -> None:
    assert await value(queue, "task_queue_wait_seconds", quantile="p50") is None
    await queue.submit_many([{"type": "code"}] * 100)
    for _ in range(100):
        clock.advance(1)
        await finish(queue)
    found = await queue.metrics.read()
    waits = [found.value("task_queue_wait_seconds", quantile=word) for word in ("p50", "p95", "p99")]
    assert waits == pytest.approx([50, 95, 99])
    clock.advance(301)
    assert await value(queue, "task_queue_wait_seconds", quantile="p99") is None


async def test_wait_time_begins_when_the_task_became_ready(queue: Queue, clock: MovedClock) -> None:
    """Time spent waiting for another task or for a retry is not time in the queue."""
    await queue.submit_dag({"tasks": [{"type": "a", "key": "x"}, {"type": "b", "dependencies": ["x"]}]})
    clock.advance(100)
    await finish(queue)
    clock.advance(7)
    await take(queue)
    found = await queue.metrics.read()
    assert found.value("shiftwork_wait_seconds_sum", type="a") == pytest.approx(100)
    assert found.value("shiftwork_wait_seconds_sum", type="b") == pytest.approx(7)
    assert found.value("shiftwork_wait_seconds_bucket", type="b", le="5.0") == 0
    assert found.value("shiftwork_wait_seconds_bucket", type="b", le="10.0") == 1
    assert found.value("shiftwork_wait_seconds_bucket", type="b", le="+Inf") == 1


async def test_oldest_wait_grows_until_the_task_is_claimed(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    clock.advance(40)
    assert await value(queue, "shiftwork_oldest_ready_seconds") == pytest.approx(40)
    await take(queue)
    assert await value(queue, "shiftwork_oldest_ready_seconds") == 0


@pytest.mark.requirement("F-254", "C-117")
async def test_completions_are_counted_by_type_with_rate_and_latency(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 10 + [{"type": "review"}])
    for _ in range(11):
        clock.advance(1)
        await finish(queue)
    found = await queue.metrics.read()
    assert found.value("tasks_completed_total", type="code") == 10
    assert found.value("tasks_completed_total", type="review") == 1
    assert found.value("shiftwork_tasks_created_total", type="code") == 10
    assert found.value("shiftwork_completed_per_minute") == pytest.approx(11 / 5)
    latencies = [found.value("shiftwork_latency_seconds", quantile=word) for word in ("p50", "p95", "p99")]
    assert latencies == pytest.approx([6, 11, 11])


@pytest.mark.requirement("F-255")
@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("timeout", "timeout"),
        ("crash", "crash"),
        ("invalid_output", "invalid_output"),
        ("budget_exceeded", "budget"),
    ],
)
async def test_failures_are_counted_by_reason(queue: Queue, reason: str, label: str) -> None:
    await queue.submit(type="code")
    await queue.fail((await take(queue)).token, reason)
    assert await value(queue, "tasks_failed_total", reason=label) == 1


@pytest.mark.requirement("F-256")
async def test_dead_letters_are_counted_in_metrics(queue: Queue) -> None:
    assert await value(queue, "tasks_dead_lettered_total") == 0
    await dead_letter(queue)
    assert await value(queue, "tasks_dead_lettered_total") == 1


@pytest.mark.requirement("C-116")
async def test_failure_rate_is_measured_by_agent_type(coscientist: Queue) -> None:
    ranked = [{"type": "Ranking", "payload": {"number": number}} for number in range(4)]
    await coscientist.submit_many([*ranked, {"type": "Reflection"}])
    for failed in (True, False, False, False):
        held = await take(coscientist, types=["Ranking"])
        await (coscientist.fail(held.token, "network") if failed else coscientist.complete(held.token))
    await coscientist.complete((await take(coscientist, types=["Reflection"])).token)
    found = await coscientist.metrics.read()
    assert found.value("shiftwork_failure_rate", agent_type="Ranking") == 0.25
    assert found.value("shiftwork_failure_rate", agent_type="Reflection") == 0


async def test_execution_time_is_measured_from_the_start(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    held = await take(queue)
    clock.advance(20)
    await queue.complete(held.token)
    found = await queue.metrics.read()
    assert found.value("shiftwork_execution_seconds_sum", type="code") == pytest.approx(20)
    assert found.value("shiftwork_execution_seconds_count", type="code") == 1


@pytest.mark.requirement("F-257", "F-258")
async def test_costs_are_counted_by_type_agent_model_and_day(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 2)
    for cost in (0.10, 0.20):
        held = await take(queue, "ada")
        await queue.complete(held.token, usage={"cost_usd": cost, "model": "opus"})
    found = await queue.metrics.read()
    assert found.value("task_cost_usd", type="code", agent="ada", model="opus") == pytest.approx(0.3)
    assert found.value("daily_spend_usd") == pytest.approx(0.3)
    for _ in range(4):
        clock.advance(DAY)
        await count_the_log(queue)
        found = await queue.metrics.read()
        assert found.value("task_cost_usd", type="code", agent="ada", model="opus") == pytest.approx(0.3)
        assert found.value("daily_spend_usd") == 0


@pytest.mark.requirement("F-259")
async def test_remaining_agent_budget_is_a_metric(queue: Queue) -> None:
    await queue.agents.register(id="ada", budget_remaining_usd=45.0)
    await queue.agents.register(id="bob")
    await queue.submit(type="code")
    await queue.complete((await take(queue, "ada")).token, usage={"cost_usd": 2.5})
    found = await queue.metrics.read()
    assert found.value("budget_remaining_usd", agent="ada") == pytest.approx(42.5)
    assert found.value("budget_remaining_usd", agent="bob") is None


@pytest.mark.requirement("F-260", "C-115")
async def test_agent_utilization_is_half_when_busy_half_the_time(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="ada", max_concurrent_tasks=2)
    await queue.agents.register(id="bob")
    clock.advance(1000)
    await queue.submit_many([{"type": "code"}] * 3)
    held = [await take(queue, "ada"), await take(queue, "ada")]
    clock.advance(75)
    for each in held:  # two at once count once
        await queue.complete(each.token)
    clock.advance(150)
    await take(queue, "ada")
    clock.advance(75)
    found = await queue.metrics.read()
    assert found.value("agent_utilization", agent_id="ada") == pytest.approx(0.5)
    assert found.value("agent_utilization", agent_id="bob") == 0
    assert found.value("shiftwork_pool_utilization") == pytest.approx(0.25)
    assert found.value("shiftwork_agents", status="active") == 1
    assert found.value("shiftwork_agents", status="idle") == 1


@pytest.mark.requirement("F-261")
async def test_missed_heartbeats_are_counted_by_agent(factory: Queue, clock: MovedClock) -> None:
    await factory.submit(type="code")
    await take(factory, "ada")
    await pass_time(factory, clock, 600)
    assert await value(factory, "agent_heartbeat_misses_total", agent_id="ada") == 1


@pytest.mark.requirement("F-262")
async def test_claim_success_rate_counts_calls_with_work(queue: Queue) -> None:
    await queue.submit(type="code")
    for _ in range(4):
        await queue.claim("ada")
    found = await queue.metrics.read()
    assert found.value("agent_claim_success_rate", agent_id="ada") == 0.25
    assert found.value("shiftwork_claim_calls_total", agent_id="ada", result="work") == 1
    assert found.value("shiftwork_claim_calls_total", agent_id="ada", result="nothing") == 3


async def test_claim_calls_of_an_ended_process_are_kept(store_url: str) -> None:
    async with Queue.open(store_url) as first:
        await first.claim("ada")
    async with Queue.open(store_url) as second:
        assert await value(second, "agent_claim_success_rate", agent_id="ada") == 0


def counters(found: Metrics) -> dict[str, float]:
    """Return the counters, which must not depend on the counting process."""
    kinds = ("counter", "histogram")
    plain = [sample for sample in found.samples if METRICS[measuring.metric_of(sample.name)].kind in kinds]
    return {f"{sample.name} {sorted(sample.labels.items())}": sample.value for sample in plain}


async def test_counting_the_event_log_changes_no_metric(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}] * 5)
    for _ in range(3):
        await finish(queue)
    await dead_letter(queue)
    before = counters(await queue.metrics.read())
    await count_the_log(queue)
    await count_the_log(queue)
    assert counters(await queue.metrics.read()) == before
    await finish(queue)
    assert await value(queue, "tasks_completed_total", type="code") == 4


async def test_counters_are_kept_when_tasks_are_purged(queue: Queue) -> None:
    await queue.submit(type="code")
    await finish(queue)
    await count_the_log(queue)
    await queue.control.purge(type="code", status=["completed"])
    assert await value(queue, "tasks_completed_total", type="code") == 1


async def test_metrics_are_separate_per_workspace(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await queue.submit(type="code")
    await finish(queue)
    await other.submit(type="code")
    await count_the_log(queue)
    assert await value(queue, "tasks_completed_total", type="code") == 1
    assert await value(other, "tasks_completed_total", type="code") is None
    assert await value(other, "shiftwork_tasks_created_total", type="code") == 1
    assert await value(other, "agent_claim_success_rate", agent_id="worker") is None


@pytest.mark.parametrize("counted", [True, False])
async def test_types_beyond_the_maximum_are_counted_as_other(queue: Queue, *, counted: bool) -> None:
    await queue.submit_many([{"type": f"type-{number:03d}"} for number in range(MAX_SERIES + 5)])
    if counted:
        await count_the_log(queue)
    await queue.submit_many([{"type": "yet-another"}] * 2)
    found = [s for s in (await queue.metrics.read()).samples if s.name == "shiftwork_tasks_created_total"]
    assert len(found) == MAX_SERIES + 1
    assert {s.labels["type"]: s.value for s in found}["other"] == 7


async def test_series_of_agents_long_gone_are_replaced(queue: Queue, clock: MovedClock) -> None:
    for number in range(MAX_SERIES):
        await queue.claim(f"agent-{number:03d}")
    await queue.metrics.read()
    await queue.claim("ada")
    assert await value(queue, "shiftwork_claim_calls_total", agent_id="ada", result="nothing") is None
    clock.advance(2 * DAY)
    await queue.claim("ada")
    assert await value(queue, "shiftwork_claim_calls_total", agent_id="ada", result="nothing") == 1


@pytest.mark.requirement("C-218")
async def test_metrics_are_calculated_every_thirty_seconds(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.submit(type="Ranking")
    began = clock()
    for _ in range(91):
        await loop.run_once(coscientist.engine)
        clock.advance(1)
    found = await coscientist.metrics.snapshots()
    assert [kept.calculated_at - began for kept in found] == pytest.approx([90, 60, 30, 0])
    assert found[0].value("shiftwork_queue_depth", priority="medium") == 1


async def test_many_workspaces_are_measured_in_turn(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_WORKSPACES", 2)
    places = [queue, queue.in_workspace("second"), queue.in_workspace("third")]
    for place in places:
        await place.submit(type="code")
    for expected in ([1, 1, 0], [2, 1, 1], [2, 2, 2]):
        clock.advance(30)
        await loop.run_once(queue.engine)
        assert [len(await place.metrics.snapshots()) for place in places] == expected


async def test_old_metric_snapshots_are_deleted(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    for _ in range(KEPT_SNAPSHOTS + 10):
        clock.advance(30)
        await loop.run_once(queue.engine)
    found = await queue.metrics.snapshots(limit=KEPT_SNAPSHOTS)
    assert clock() - found[-1].calculated_at <= 30 * KEPT_SNAPSHOTS
    rows = await queue.engine.store.read(
        lambda tx: tx.all("metric_snapshots", workspace="default", since=0.0, count=10_000)
    )
    assert len(rows) <= KEPT_SNAPSHOTS + 1


def test_times_are_counted_by_the_bounds_of_the_catalogue() -> None:
    for dialect in ("sqlite", "postgres"):
        text = statements.load(dialect)["meter_seconds"].text
        bounds = re.findall(r"s\.seconds <= ([\d.]+) then (\d+)", text)
        assert [(float(bound), int(place)) for bound, place in bounds] == [(b, n) for n, b in enumerate(BUCKETS)]


async def test_events_that_name_no_type_are_counted_like_those_that_do(queue: Queue, clock: MovedClock) -> None:
    """Events of earlier versions have no type and no times."""
    await queue.submit_many([{"type": "code"}] * 3 + [{"type": "docs"}])
    await queue.agents.register(id="worker", max_concurrent_tasks=10)
    clock.advance(7)
    held = await queue.claim("worker", 10, start=True)
    clock.advance(40)
    await queue.batch.complete([Completion(token=each.token) for each in held[1:]])
    await queue.complete(held[0].token)
    times = "shiftwork_wait_seconds", "shiftwork_execution_seconds"
    names = {"tasks_completed_total", "shiftwork_tasks_created_total", *times}

    async def counted() -> list[Sample]:
        samples = (await queue.metrics.read()).samples
        return [sample for sample in samples if measuring.metric_of(sample.name) in names]

    named = await counted()
    assert Sample("shiftwork_wait_seconds_sum", 21.0, {"type": "code"}) in named
    assert Sample("shiftwork_execution_seconds_sum", 40.0, {"type": "docs"}) in named
    await forget_types(queue)
    assert await counted() == named


async def forget_types(queue: Queue) -> None:
    columns = "type = null, seconds = null"
    store = queue.engine.store
    if isinstance(store, PostgresStore):
        connection = await asyncpg.connect(store.dsn, server_settings={"search_path": store.schema})
        try:
            await connection.execute(f"update events set {columns}, spans = null")
        finally:
            await connection.close()
    else:
        file = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        file.execute(f"update events set {columns}")
        file.close()
