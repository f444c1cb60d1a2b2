"""The factory's document on the sources of work, its storage, and its metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from tests import deliveries
from tests.acceptance.factory import CODER, EXACT, OTHER, Factory, ids, served
from tests.bridges.redis.streams import TASK, entries, orchestrator
from tests.conformance.steps import sql
from tests.server import processes

SECRET = "a secret that only github knows"


@pytest.fixture
async def factory(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Factory]:
    async with served(store_url, monkeypatch) as server:
        yield server


async def made_by(factory: Factory, creator: str) -> list[tuple[str, str]]:
    """Type and title of what this source has created."""
    tasks = (await factory.ask("GET /api/tasks"))["tasks"]
    return [(task["type"], task["title"]) for task in tasks if task["created_by"] == creator]


async def save_trigger(factory: Factory, name: str, on: dict[str, Any], **creates: Any) -> None:
    reply = await factory.api.call("PUT", f"/api/triggers/{name}", {"on": on, **creates})
    assert reply.status == 200, reply


@pytest.mark.requirement("F-204", "F-205", "F-206", "F-207", "F-208", "F-209", "F-211")
async def test_tasks_come_from_schedules_events_dags_and_friction(factory: Factory) -> None:
    await factory.register()
    audit = {"type": "review", "title": "Audit dependencies"}
    await save_trigger(factory, "monday-audit", {"kind": "cron", "at": "0 9 * * MON"}, task=audit)
    await save_trigger(
        factory,
        "review",
        {"kind": "hook", "signature": "github", "where": {"event": "pull_request", "payload.action": "opened"}},
        task={"type": "review", "title": "Review {{ title }}"},
        parameters={"title": {"from": "payload.pull_request.title"}},
        secret=SECRET,
    )
    report = {"type": "synthesis", "title": "generate report"}
    await save_trigger(factory, "report", {"kind": "dag", "title": "data pipeline"}, task=report)
    refactor = {"type": "code", "title": "Refactor {type}"}
    await factory.set_up(friction={"failure_rate": 0.4, "min_count": 2, "create": refactor})

    body = deliveries.PULL_REQUEST
    signed = deliveries.github(SECRET, body, "pull_request")
    assert (await factory.api.call("POST", "/api/hooks/review", data=body, headers=signed)).status == 200
    title = json.loads(body)["pull_request"]["title"]
    assert await made_by(factory, "trigger:review") == [("review", f"Review {title}")]

    await factory.create_dag({"key": "load"}, {"key": "clean", "depends_on": ["load"]}, title="data pipeline")
    for _ in range(3):
        await factory.finish()
    await factory.pass_time(1)
    assert await made_by(factory, "trigger:report") == [("synthesis", "generate report")]
    await factory.finish()

    for number in range(5):
        auth = await factory.running(type="auth", max_attempts=1)
        await factory.report(auth, *(("fail",) if number < 2 else ("complete",)))
    await factory.pass_time(60)
    assert await made_by(factory, "friction") == [("code", "Refactor auth")]

    assert await made_by(factory, "cron:monday-audit") == []
    await factory.pass_time(7 * 86_400)
    assert await made_by(factory, "cron:monday-audit") == [("review", "Audit dependencies")]


@pytest.mark.requirement("F-203")
async def test_creator_of_a_task_is_kept(factory: Factory) -> None:
    await factory.register()
    for creator in ("agent:orchestrator", "human:adam", "cron:nightly-audit"):
        assert (await factory.create(created_by=creator))["created_by"] == creator
    parent = await factory.claim()
    await factory.report(parent, "start")
    (spawned,) = (await factory.report(parent, "spawn", tasks=[{"type": "research"}]))["tasks"]
    assert (spawned["created_by"], spawned["parent_id"]) == (f"agent:{CODER}", parent["id"])


@pytest.mark.requirement("F-238", "F-248", "F-271")
async def test_documented_sql_queries_work(factory: Factory) -> None:
    await factory.register(max_concurrent_tasks=2)
    task = await factory.running(title="Now")
    await factory.create(title="Later")
    queue = factory.api.state.queue
    busy = "SELECT * FROM tasks WHERE status = 'RUNNING'"
    stale = """
        SELECT * FROM tasks
        WHERE status IN ('CLAIMED', 'RUNNING')
          AND heartbeat_at < NOW() - INTERVAL '90 seconds'
    """
    if queue.url.startswith("sqlite"):
        ago = "datetime('now', '-90 seconds')"
        there = stale.replace("NOW() - INTERVAL '90 seconds'", ago)
        found = [await sql(queue, query.replace("tasks", "factory_tasks")) for query in (busy, there)]
    else:
        client = await asyncpg.connect(queue.url, server_settings={"search_path": "factory"})
        found = [[dict(row) for row in await client.fetch(query)] for query in (busy, stale)]
        await client.close()
    (row,) = found[0]
    assert (row["title"], row["claim_agent_id"], row["status"]) == ("Now", CODER, "RUNNING")
    # The server's clock is in the past, and the database's continues: the last heartbeat was long ago.
    assert [row["title"] for row in found[1]] == ["Now"]
    await factory.report(task, "complete")


@pytest.mark.requirement("F-050", "F-239")
async def test_artifact_is_kept_with_the_task_that_made_it(factory: Factory) -> None:
    await factory.register()
    task = await factory.running(output={"type": "artifact"})
    uploaded = (await factory.api.call("POST", f"/api/artifacts?task={task['id']}", data=b"<html>")).json
    done = await factory.report(task, "complete", artifacts=[uploaded["id"]])
    assert done["output"]["artifacts"] == [uploaded["id"]]
    downloaded = await factory.api.call("GET", f"/api/artifacts/{uploaded['id']}")
    assert downloaded.body == b"<html>"


@pytest.mark.requirement("F-240")
async def test_events_need_no_redis_and_are_published_by_a_bridge(factory: Factory, redis_url: str) -> None:
    alone = await factory.create()
    assert ("task.ready", alone["id"]) in await factory.events()
    redis = Redis.from_url(redis_url, decode_responses=True)
    assert await redis.keys("*") == []
    bridge = orchestrator(factory.api.state.queue, redis_url, events=True)
    await bridge.run_once()
    task = await factory.create()
    await bridge.run_once()
    seen_events = [(entry["event"], entry["task_id"]) for entry in await entries(redis, "stream:events")]
    assert ("task.created", task["id"]) in seen_events
    assert [entry["task_id"] for entry in await entries(redis, TASK)] == ids([alone, task])
    await bridge.context.redis.aclose()
    await redis.aclose()


def children_of(pid: int) -> list[str]:
    return [child for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()]


def talks_to(pid: int, served_port: int) -> set[int]:
    """Return the remote ports of a process's outgoing connections."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, here, there, state, *_, inode = line.split()[:10]
        port, other = (int(address.partition(":")[2], 16) for address in (here, there))
        if f"socket:[{inode}]" in sockets and state == "01" and port != served_port:
            found.add(other)
    return found


@pytest.mark.requirement("F-165", "F-247", "F-250", "F-251", "F-270")
async def test_one_process_and_one_database_are_enough(store_url: str) -> None:
    server = await processes.start(store_url, "--profile", "factory")
    async with server, aiohttp.ClientSession() as http:

        async def post(path: str, body: Any) -> Any:
            async with http.post(f"{server.url}/api{path}", json=body) as answer:
                assert answer.status < 300, await answer.text()
                return await answer.json()

        await post("/tasks", [{"type": "code"}] * 300)
        done = 0
        while handed := (await post("/tasks/claim", {"agent_id": CODER, "count": 100, "start": True}))["tasks"]:
            reports = [{"token": each["token"], "data": {"done": True}} for each in handed]
            done += len((await post("/batch/complete", {"reports": reports}))["outcomes"])
        pid = server.process.pid
        children = children_of(pid)
        database = {urlsplit(store_url).port} - {None}
        others = talks_to(pid, urlsplit(server.url).port or 0)
    assert done == 300
    assert children == []
    assert others == database


@pytest.mark.requirement("F-252", "F-253", "F-254", "F-255", "F-256", "F-257", "F-258", "F-259", "F-261", "F-262")
async def test_each_documented_metric_has_its_labels_and_value(factory: Factory) -> None:
    await factory.register(budget_remaining_usd=45.00)
    await factory.register(OTHER)
    for number in (1, 2):
        await factory.create()
        await factory.pass_time(10)
        await factory.finish(usage={"cost_usd": number / 10, "model": "claude-haiku"})
    failed = await factory.running(max_attempts=1)
    await factory.report(failed, "fail", reason="invalid_output", error="boom")
    silent = await factory.running(OTHER, retry=EXACT)
    await factory.pass_time(91)
    assert await factory.status(silent) == "RETRYING"
    assert await factory.claim(OTHER) is None
    await factory.create()
    found: dict[str, float] = {}
    reply = await factory.api.call("GET", "/metrics")
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    wanted = {
        "task_queue_depth{priority_tier=normal,status=ready}": 1,
        "task_queue_wait_seconds{quantile=p50}": 0,
        "task_queue_wait_seconds{quantile=p95}": 10,
        "task_queue_wait_seconds{quantile=p99}": 10,
        "tasks_completed_total{type=code}": 2,
        "tasks_failed_total{reason=invalid_output}": 1,
        "tasks_failed_total{reason=timeout}": 1,
        "tasks_failed_detail_total{reason=heartbeat_timeout}": 1,
        "tasks_dead_lettered_total": 1,
        f"task_cost_usd{{agent={CODER},model=claude-haiku,type=code}}": 0.30,
        "daily_spend_usd": 0.30,
        f"budget_remaining_usd{{agent={CODER}}}": 44.70,
        f"agent_heartbeat_misses_total{{agent_id={OTHER}}}": 1,
        f"agent_claim_success_rate{{agent_id={CODER}}}": 1,
        f"agent_claim_success_rate{{agent_id={OTHER}}}": 0.5,
    }
    assert {name: found.get(name) for name in wanted} == {name: pytest.approx(value) for name, value in wanted.items()}
    assert 0 < found[f"agent_utilization{{agent_id={OTHER}}}"] <= 1
