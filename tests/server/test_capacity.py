"""A full queue over HTTP: refused with a retry time; and a command that starts missing workers."""

import asyncio
import sys
from pathlib import Path

import pytest

from shiftwork import Client
from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import InputError, QueueFull
from shiftwork.server.below_minimum import BelowMinimum
from tests.server.running import Running, running
from tests.worker.steps import until

NOOP = {"type": "noop"}


async def fill(api: Running, most: int = 1) -> None:
    assert (await api.call("PATCH", "/api/settings", {"set": {"max_queue_size": most}})).status == 200
    await api.post("/api/tasks", [NOOP] * most)


@pytest.mark.requirement("C-101")
async def test_full_queue_answers_429_with_retry_after(api: Running) -> None:
    await fill(api)
    refused = await api.call("POST", "/api/tasks", NOOP)
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "queue_full", "5")
    assert refused.json["facts"] == {"level": "medium", "waiting": 1, "limit": 1, "retry_after": 5.0}
    dag = await api.call("POST", "/api/dags", {"tasks": [{**NOOP, "key": "a"}]})
    assert (dag.status, dag.code) == (429, "queue_full")


async def test_refused_request_can_be_repeated_with_its_key(api: Running) -> None:
    await fill(api)
    key = {"headers": {"Idempotency-Key": "once"}}
    assert (await api.call("POST", "/api/tasks", NOOP, **key)).status == 429
    (claim,) = (await api.post("/api/tasks/claim", {"agent_id": "a", "start": True}))["assignments"]
    made = await api.call("POST", "/api/tasks", NOOP, **key)
    assert made.status == 201
    assert (await api.call("POST", "/api/tasks", NOOP, **key)).json == made.json
    assert claim["task"]["id"] != made.json["id"]


async def test_client_waits_for_room_in_a_full_queue(api: Running) -> None:
    await fill(api)
    async with Client.open(api.url) as client:
        with pytest.raises(QueueFull):
            await client.submit(NOOP)
        assert (await client.control.backpressure()).full == ["low", "medium", "high"]
        waiting = asyncio.create_task(client.submit(NOOP, wait_for_room=60))
        await client.claim("a", start=True)
        assert (await waiting).status == "ready"


@pytest.mark.requirement("C-185")
async def test_pool_below_minimum_runs_the_command_once_a_minute(api: Running, tmp_path: Path) -> None:
    await api.call("PATCH", "/api/settings?workspace=lab", {"set": {"min_agents": 1}})
    output = tmp_path / "told"
    program = f"import os; open({str(output)!r}, 'a').write(os.environ['SHIFTWORK_WORKSPACE'] + '\\n')"
    below_minimum = BelowMinimum(api.state.queue, f'{sys.executable} -c "{program}"')
    assert await below_minimum.scan() == []
    await api.pass_time(30)
    assert await below_minimum.scan() == ["lab"]
    await until(lambda: output.exists() and output.read_text(encoding="utf-8") == "lab\n")
    assert await below_minimum.scan() == []
    await api.pass_time(60)
    assert await below_minimum.scan() == ["lab"]
    await until(lambda: output.read_text(encoding="utf-8") == "lab\nlab\n")
    await api.post("/api/agents?workspace=lab", {"id": "worker"})
    await api.pass_time(30)
    await api.pass_time(30)
    assert await below_minimum.scan() == []


async def test_missing_command_stops_nothing(api: Running) -> None:
    await api.call("PATCH", "/api/settings", {"set": {"min_agents": 1}})
    await api.pass_time(30)
    assert await BelowMinimum(api.state.queue, "/no/such/program").scan() == ["default"]


async def test_server_runs_the_below_minimum_command(store_url: str, tmp_path: Path) -> None:
    output = tmp_path / "told"
    command = f"{sys.executable} -c \"import os; print(os.getpid(), file=open({str(output)!r}, 'w'), flush=True)\""
    async with running(store_url, on_below_minimum=command) as api:
        await api.call("PATCH", "/api/settings", {"set": {"min_agents": 1}})
        await run_once(api.state.queue.engine, force=True)
        await until(lambda: output.exists() and output.read_text() != "")
        process = Path("/proc", output.read_text().strip())
        await until(lambda: not process.exists())  # it would outlive this loop, and be noticed in another test


@pytest.mark.parametrize("command", ["", "a 'b"])
async def test_invalid_below_minimum_command_is_refused_at_start(store_url: str, command: str) -> None:
    with pytest.raises(InputError, match="on-below-minimum"):
        async with running(store_url, on_below_minimum=command):
            pass
