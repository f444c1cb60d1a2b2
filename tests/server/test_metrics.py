"""`/metrics` as read by the real Prometheus client: every name with its labels, and values of a known history."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shiftwork import Client
from shiftwork.observe.metric_catalogue import METRICS
from tests.conformance.steps import take
from tests.server.processes import servers
from tests.server.running import Reply, Running


def parse(reply: Reply) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels."""
    assert reply.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


async def scrape(api: Running, path: str = "/metrics") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reply = await api.call("GET", path)
    assert reply.status == 200, reply
    return parse(reply)


async def play(api: Running) -> None:
    """A history whose numbers are known: two completed, one dead, one silent agent, 0.30 dollars."""
    queue = api.state.queue
    await queue.settings.use_profile("factory")
    await queue.agents.register(id="ada", budget_remaining_usd=45.0, max_concurrent_tasks=5)
    for type_, cost in (("code", 0.10), ("research", 0.20)):
        await queue.submit(type=type_)
        (held,) = await queue.claim("ada", start=True)
        await queue.complete(held.token, usage={"cost_usd": cost, "model": "opus"})
    await queue.submit(type="review", max_attempts=1)
    await queue.fail((await take(queue, "ada")).token, "crash")
    await queue.claim("ada")
    await queue.submit(type="code")
    await take(queue, "bob")
    await api.pass_time(600)
    await queue.submit(type="code", priority=50, target_agent_id="nobody")


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


@pytest.mark.requirement(
    "F-252", "F-253", "F-254", "F-255", "F-256", "F-257", "F-258", "F-259", "F-260", "F-261", "F-262"
)
async def test_each_documented_metric_has_its_labels_and_value(api: Running) -> None:
    await play(api)
    found = await scrape(api)
    assert found[key("task_queue_depth", status="ready", priority_tier="normal")] == 1
    assert found[key("tasks_completed_total", type="code")] == 1
    assert found[key("tasks_completed_total", type="research")] == 1
    assert found[key("tasks_failed_total", reason="crash")] == 1
    assert found[key("tasks_dead_lettered_total")] == 1
    assert found[key("task_cost_usd", type="code", agent="ada", model="opus")] == pytest.approx(0.10)
    assert found[key("task_cost_usd", type="research", agent="ada", model="opus")] == pytest.approx(0.20)
    assert found[key("daily_spend_usd")] == pytest.approx(0.30)
    assert found[key("budget_remaining_usd", agent="ada")] == pytest.approx(44.70)
    assert found[key("agent_utilization", agent_id="ada")] == 0
    assert found[key("agent_heartbeat_misses_total", agent_id="bob")] == 1
    assert found[key("agent_claim_success_rate", agent_id="ada")] == 0.75
    await take(api.state.queue, "nobody")
    found = await scrape(api)
    assert {labels[0] for name, labels in found if name == "task_queue_wait_seconds"} == {
        ("quantile", "p50"),
        ("quantile", "p95"),
        ("quantile", "p99"),
    }


@pytest.mark.requirement("F-242")
async def test_metrics_text_is_valid_for_prometheus(api: Running) -> None:
    """Types and help stand with each name; the labels of each are those of the catalogue."""
    await play(api)
    reply = await api.call("GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
    for metric in METRICS.values():
        family = families.get(metric.name.removesuffix("_total"))
        if family is None:
            continue
        assert family.type == metric.kind
        assert family.documentation == metric.meaning
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
    of_a_map = {name for name in METRICS if name.startswith("shiftwork_database_")}  # in /metrics/all
    output = {name.removesuffix("_total") for name in METRICS} - of_a_map
    assert set(families) <= output
    assert output - set(families) <= {
        "shiftwork_refused_writes",
        "shiftwork_latency_seconds",
        "task_queue_wait_seconds",
    }


async def test_histogram_buckets_are_cumulative(api: Running) -> None:
    await play(api)
    found = await scrape(api)
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "shiftwork_wait_seconds_bucket" and dict(labels)["type"] == "code"
    }
    ordered = [buckets[bound] for bound in sorted(buckets, key=float)]
    assert ordered == sorted(ordered)
    assert math.isinf(max(map(float, buckets)))
    assert ordered[-1] == found[key("shiftwork_wait_seconds_count", type="code")] == 2


async def test_latency_is_measured_for_every_operation(api: Running) -> None:
    await api.post("/api/tasks", {"type": "code"})
    await api.call("GET", "/api/tasks/nothing")
    found = await scrape(api)
    assert found[key("shiftwork_request_seconds_count", operation="submit", status="201")] == 1
    assert found[key("shiftwork_request_seconds_count", operation="get", status="404")] == 1


async def test_refused_writes_are_counted_by_code(api: Running) -> None:
    queue = api.state.queue
    await queue.submit(type="code")
    held = await take(queue)
    await queue.release(held.token)
    await api.call("POST", f"/api/tasks/{held.id}/complete", {"token": held.token})
    assert (await scrape(api))[key("shiftwork_refused_writes_total", code="lease_lost")] == 1


async def test_metrics_require_the_read_scope(guarded: Running) -> None:
    queue = guarded.state.queue
    assert (await guarded.call("GET", "/metrics")).status == 401
    reader = await queue.tokens.create("prometheus", scopes=["read"])
    headers = {"Authorization": f"Bearer {reader.secret}"}
    assert (await guarded.call("GET", "/metrics", headers=headers)).status == 200


async def test_metrics_cover_one_workspace(api: Running) -> None:
    await api.state.queue.in_workspace("other").submit(type="elsewhere")
    assert key("shiftwork_tasks_created_total", type="elsewhere") not in await scrape(api)
    assert key("shiftwork_tasks_created_total", type="elsewhere") in await scrape(api, "/metrics?workspace=other")


@pytest.mark.requirement("C-133")
async def test_supervisor_reads_status_and_metrics(api: Running) -> None:
    await api.state.queue.settings.use_profile("coscientist")
    await api.post("/api/tasks", {"type": "Ranking", "priority": 20})
    await api.pass_time(31)
    reply = await api.get("/api/metrics")
    depth = {"name": "shiftwork_queue_depth", "labels": {"priority": "high"}, "value": 1.0}
    assert depth in reply["samples"]
    assert (await api.get("/api/queue"))["depth"]["high"] == 1
    kept = (await api.get("/api/metrics/snapshots"))["snapshots"]
    assert kept
    assert depth in kept[0]["samples"]
    async with Client.open(api.url) as supervisor:
        assert (await supervisor.metrics.read()).value("shiftwork_queue_depth", priority="high") == 1
        (newest,) = await supervisor.metrics.snapshots(limit=1)
        assert newest.value("shiftwork_queue_depth", priority="high") == 1
        assert (await supervisor.status()).depth["high"] == 1


async def test_two_servers_report_the_same_metrics(store_url: str) -> None:
    """Counts are in the database, so they do not depend on which server is asked or killed."""
    import aiohttp  # noqa: PLC0415  # for this test alone

    async with servers(store_url, 2) as (first, second), aiohttp.ClientSession() as http:
        for server in (first, second):
            async with http.post(f"{server.url}/api/tasks", json={"type": "code"}) as answer:
                assert answer.status == 201
        await first.kill()
        async with http.get(f"{second.url}/metrics") as answer:
            text = await answer.text()
    assert 'shiftwork_tasks_created_total{type="code"} 2.0' in text
