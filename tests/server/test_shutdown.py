"""Stopping servers and disconnecting callers: waiting calls are answered, and no claim stays without a holder."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.engine import claim_requests
from shiftwork.maintenance import write_probe
from shiftwork.model.errors import StoreFull
from shiftwork.server.app import build
from shiftwork.server.routes import ENDPOINTS
from shiftwork.store.sqlite import SqliteStore
from tests.conformance.steps import give_folder
from tests.server import processes, raw
from tests.server.endpoints import waiting
from tests.server.running import Running, running
from tests.worker.steps import until

WAIT = {"agent_id": "ada", "wait_sec": 25}


def parked(api: Running) -> int:
    """Return how many claims wait for work in this server."""
    return len(api.state.queue.executor.shared.claim_waiters._waiters)


async def claimed(queue: Queue) -> set[str]:
    """The tokens of all claims there are."""
    page = await queue.tasks.list(status=["claimed", "running"])
    return {task.claim.assignment_id or "" for task in page.tasks}


def tokens(found: Any) -> set[str]:
    return {held["token"] for held in found["assignments"]}


async def test_waiting_claims_are_answered_when_the_server_stops(store_url: str) -> None:
    """With 200 and no task: otherwise the server would close their connections."""
    agents = [f"agent-{number}" for number in range(5)]
    async with (
        await processes.start(store_url) as server,
        await Queue.open(store_url) as queue,
        aiohttp.ClientSession() as http,
    ):

        async def claim(agent: str) -> Any:
            body = {"agent_id": agent, "wait_sec": 25}
            async with http.post(f"{server.url}/api/tasks/claim", json=body) as answer:
                return answer.status, await answer.json()

        async def all_have_looked() -> bool:
            return len(await queue.agents.list()) == len(agents)

        claims = [asyncio.create_task(claim(agent)) for agent in agents]
        await until(all_have_looked)
        assert await server.stop() == 0
        for status, reply in await asyncio.gather(*claims):
            assert (status, reply["assignments"]) == (200, [])
        await waiting(queue)
        assert len(await queue.claim("other")) == 1


async def test_no_claim_is_lost_between_submit_and_stop(store_url: str) -> None:
    """Tasks arrive while the server stops: each is either ready, or held by an agent that received it."""
    for _ in range(5):
        async with running(store_url) as api:
            sent = [api.post("/api/tasks/claim", {**WAIT, "agent_id": f"agent-{n}"}) for n in range(10)]
            claims = [asyncio.create_task(each) for each in sent]
            await until(lambda api=api: parked(api) == 10)  # type: ignore[misc]  # bound here on purpose
            await asyncio.gather(*(waiting(api.state.queue) for _ in range(10)), _stop(api))
            outcome = await asyncio.gather(*claims)
        async with Queue.open(store_url) as queue:
            assert await claimed(queue) == set().union(*map(tokens, outcome))
            for token in await claimed(queue):
                await queue.release(token)
            assert await queue.control.purge(type="noop") == 10


async def _stop(api: Running) -> None:
    api.server.stop()


async def test_server_with_read_only_store_is_not_ready(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still reads, but writes that a load balancer sends to it would fail."""
    monkeypatch.setattr(write_probe, "BEAT_SEC", 0.05)
    async with running(sqlite_url) as api:
        store = api.state.queue.engine.store
        assert isinstance(store, SqliteStore)

        async def status() -> int:
            return (await api.call("GET", "/readyz")).status

        async def refused() -> bool:
            return await status() == 503

        async def ready() -> bool:
            return await status() == 200

        await until(ready)
        await store.run(lambda tx: tx.all("list_jobs"))
        store._connection.pragma("query_only", 1)
        await until(refused)
        assert (await api.call("GET", "/readyz")).json["status"] == "unavailable"
        store._connection.pragma("query_only", 0)
        await until(ready)


async def test_readyz_reports_a_full_disk(sqlite_url: str) -> None:
    async with Queue.open(sqlite_url) as queue:
        store = queue.engine.store
        assert isinstance(store, SqliteStore)
        store._connection.pragma("max_page_count", store._connection.pragma("page_count"))
        with pytest.raises(StoreFull):
            await queue.submit(type="code", payload={"text": "x" * 100_000})
        assert isinstance(store.refusal, StoreFull)
        store._connection.pragma("max_page_count", 1 << 30)
        await write_probe.ProcessHeartbeat(queue.engine).beat()
        assert store.refusal is None


async def test_stopping_server_is_not_ready(api: Running) -> None:
    assert (await api.get("/readyz"))["status"] == "ok"
    api.state.stopping.set()
    reply = await api.call("GET", "/readyz")
    assert (reply.status, reply.json["status"], reply.headers["retry-after"]) == (503, "stopping", "1")
    assert (await api.get("/healthz"))["status"] == "ok"


async def test_claim_at_a_stopping_server_does_not_wait(api: Running) -> None:
    api.state.stopping.set()
    assert (await api.post("/api/tasks/claim", WAIT))["assignments"] == []


async def test_idle_connections_and_partial_requests_do_not_delay_shutdown(store_url: str) -> None:
    async with (
        await processes.start(store_url) as server,
        raw.line(server.url) as idle,
        raw.line(server.url) as half,
        raw.line(server.url) as used,
    ):
        half.send(b"POST /api/tasks HTTP/1.1\r\nhost: local")
        used.send(raw.request("GET", "/healthz"))
        assert (await used.answer()).status == 200
        stopping = asyncio.create_task(server.stop())
        assert await idle.is_over()
        assert await half.is_over()
        assert await used.is_over()
        assert await stopping == 0


@pytest.mark.parametrize("target", ["/api/tasks", "/api/artifacts"])
async def test_incomplete_body_is_refused_when_the_server_stops(api: Running, target: str) -> None:
    """It is refused so that its sender retries; otherwise the end of the grace period caused a traceback and 500."""
    give_folder(api.state.queue)
    async with raw.line(api.url) as line:
        line.send(raw.request("POST", target, b'{"ty', **{"content-length": "100"}))
        await until(lambda: len(api.state.reads) == 1)
        api.server.stop()
        found = await line.answer()
        assert (found.status, found.json["code"], found.json["where"]) == (503, "overloaded", "body")
        assert found.headers["content-type"] == "application/problem+json"
        assert int(found.headers["retry-after"]) > 0
        assert await line.is_over()
    assert (await api.state.queue.tasks.list()).tasks == []


async def test_process_waiting_for_a_body_stops_at_once(store_url: str) -> None:
    async with await processes.start(store_url) as server, raw.line(server.url) as line:
        line.send(raw.request("POST", "/api/tasks", b'{"ty', **{"content-length": "100"}, expect="100-continue"))
        assert (await line.answer()).status == 100, "it waits for the rest"
        assert await server.stop() == 0
        assert (await line.answer()).status == 503


async def test_received_body_is_processed_while_the_server_stops(api: Running) -> None:
    api.state.stop()
    assert (await api.call("POST", "/api/tasks", {"type": "noop"})).status == 201


def claim_request(agent: str = "ada") -> bytes:
    return raw.request("POST", "/api/tasks/claim", json.dumps({**WAIT, "agent_id": agent}).encode())


async def test_disconnected_waiting_caller_gets_no_task(api: Running) -> None:
    async with raw.line(api.url) as line:
        line.send(claim_request())
        await until(lambda: parked(api) == 1)
    await until(lambda: parked(api) == 0)
    task_id = await waiting(api.state.queue)
    reply = await api.post("/api/tasks/claim", {"agent_id": "bob"})
    assert [held["task"]["id"] for held in reply["assignments"]] == [task_id]


async def test_task_arriving_as_caller_disconnects_goes_to_another(api: Running) -> None:
    """In every order another agent gets it, long before any lease expires."""
    for _ in range(20):
        async with raw.line(api.url) as line:
            line.send(claim_request())
            await until(lambda: parked(api) == 1)
        task_id = await waiting(api.state.queue)
        reply = await api.post("/api/tasks/claim", {"agent_id": "bob", "wait_sec": 25, "start": True})
        assert [held["task"]["id"] for held in reply["assignments"]] == [task_id]
        await api.post(f"/api/tasks/{task_id}/complete", {"token": reply["assignments"][0]["token"]})


async def test_claim_made_for_a_disconnected_caller_is_released(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It disconnected after the claim was made, and before it was answered."""
    task_id = await waiting(api.state.queue)
    messages = iter([{"type": "http.request", "body": json.dumps({"agent_id": "ada"}).encode(), "more_body": False}])
    claimed, claim = asyncio.Event(), claim_requests._claim

    async def claim_and_say_so(*args: Any) -> Any:
        answer = await claim(*args)
        claimed.set()
        return answer

    async def receive() -> Any:
        for message in messages:
            return message
        await claimed.wait()
        return {"type": "http.disconnect"}

    monkeypatch.setattr(claim_requests, "_claim", claim_and_say_so)

    async def send(_message: Any) -> None:
        pass

    path = "/api/tasks/claim"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await build(api.state, ENDPOINTS)(scope, receive, send)
    task = await api.state.queue.get(task_id)
    assert (task.status, task.attempts) == ("ready", 0)
    assert [event.verb for event in (await api.state.queue.tasks.history(task_id)).events] == [
        "submitted",
        "claimed",
        "released",
    ]


@pytest.mark.parametrize("runtime", [False, True])
async def test_waiting_runtime_claim_ends_when_caller_disconnects(api: Running, *, runtime: bool) -> None:
    body = {"runtime_id": "host", "wait_sec": 25} if runtime else WAIT
    async with raw.line(api.url) as line:
        line.send(raw.request("POST", "/api/tasks/claim", json.dumps(body).encode()))
        await until(lambda: parked(api) == 1)
    await until(lambda: parked(api) == 0)
    assert await claimed(api.state.queue) == set()
