"""Results over HTTP: waiting calls cost nothing until their task ends, and each outcome has its own answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from shiftwork.access import authenticator
from shiftwork.engine import result_waiters
from shiftwork.store.store import Verb
from tests.server.running import Reply, Running
from tests.worker.steps import until

WAITERS = 1000


async def submitted(api: Running, **fields: Any) -> str:
    made: dict[str, Any] = await api.post("/api/tasks", {"type": "code", **fields})
    return str(made["id"])


async def taken(api: Running) -> dict[str, Any]:
    (held,) = (await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}))["assignments"]
    return dict(held)


def waiting(api: Running, task_id: str, **options: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(api.call("GET", f"/api/tasks/{task_id}/result?wait_sec=25", **options))


async def parked(api: Running, count: int) -> None:
    async def enough() -> bool:
        return api.state.queue.executor.shared.result_waiters.parked == count

    await until(enough)


async def test_thousand_waiting_calls_on_one_server_send_no_statement(
    api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waiters, "FIRST_LOOKS_SEC", ())
    made = [task["id"] for task in await api.post("/api/tasks", [{"type": "code"}] * WAITERS)]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:  # a connection for each
        crowd = Running(api.server, http)
        calls = {task_id: waiting(crowd, task_id) for task_id in made}
        await parked(api, WAITERS)
        await _one_ends(api, calls, monkeypatch)
        for call in calls.values():
            call.cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)


async def _one_ends(api: Running, calls: dict[str, asyncio.Task[Reply]], monkeypatch: pytest.MonkeyPatch) -> None:
    store, sent = api.state.queue.engine.store, Counter[str]()
    read = store.read

    def counted(verb: Verb[Any], /) -> Any:
        sent["read"] += 1
        return read(verb)

    monkeypatch.setattr(store, "read", counted)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sent["read"] == 0
    held = await taken(api)
    sent.clear()
    await api.post(f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"], "data": 7})
    ended = await calls.pop(held["task"]["id"])
    assert (ended.status, ended.json["data"]) == (200, 7)
    assert sent["read"] <= 2  # the completion's own, and the look of its waiter
    assert not any(call.done() for call in calls.values())


async def test_each_end_has_a_status_and_a_code(api: Running) -> None:
    failing = await submitted(api, max_attempts=1)
    early = await api.call("GET", f"/api/tasks/{failing}/result")
    assert (early.status, early.code, early.json["facts"]["status"]) == (409, "result_timeout", "ready")
    call = waiting(api, failing)
    await parked(api, 1)
    held = await taken(api)
    body = {"token": held["token"], "reason": "agent_error", "error": "it broke", "data": {"half": 1}}
    await api.post(f"/api/tasks/{failing}/fail", body)
    failed = await call
    facts = failed.json["facts"]
    assert (failed.status, failed.code, facts["error"], facts["data"]) == (409, "task_failed", "it broke", {"half": 1})
    cancelled = await submitted(api)
    await api.post(f"/api/tasks/{cancelled}/cancel")
    assert (await waiting(api, cancelled)).code == "task_cancelled"
    assert (await waiting(api, "nothing")).code == "not_found"


async def test_result_in_a_view_shows_a_failed_attempt(api: Running) -> None:
    task_id = await submitted(api, max_attempts=1)
    path = f"/api/tasks/{task_id}/result?view=coscientist"
    assert (await api.call("GET", path)).code == "not_found"
    call = asyncio.create_task(api.call("GET", f"{path}&wait_sec=25"))
    await parked(api, 1)
    held = await taken(api)
    await api.post(f"/api/tasks/{task_id}/fail", {"token": held["token"], "reason": "agent_error", "error": "broke"})
    for reply in (await call, await api.call("GET", path)):
        assert (reply.status, reply.json["status"], reply.json["error"]) == (200, "Failed", "broke")


async def test_wait_for_a_dag(api: Running) -> None:
    body = {"tasks": [{"type": "code", "key": "a"}, {"type": "code", "key": "b", "dependencies": ["a"]}]}
    made = (await api.post("/api/dags", body))["tasks"]
    path = f"/api/dags/{made[0]['dag_id']}/result"
    assert (await api.call("GET", path)).code == "result_timeout"
    call = asyncio.create_task(api.get(f"{path}?wait_sec=25"))
    await parked(api, 1)
    for number in range(2):
        held = await taken(api)
        await api.post(f"/api/tasks/{held['task']['id']}/complete", {"token": held["token"], "data": number})
    found = await call
    assert (found["status"], [task["output"] for task in found["tasks"]]) == ("completed", [0, 1])


@pytest.mark.parametrize("wait", ["26", "-1", "soon", "nan", "1e400", ""])
async def test_invalid_wait_is_refused(api: Running, wait: str) -> None:
    task_id = await submitted(api)
    for path in (f"/api/tasks/{task_id}/result", f"/api/dags/{task_id}/result"):
        reply = await api.call("GET", f"{path}?wait_sec={wait}")
        assert (reply.status, reply.json["where"]) == (422, "wait_sec")


async def test_disconnected_caller_leaves_nothing_behind(api: Running) -> None:
    call = waiting(api, await submitted(api))
    await parked(api, 1)
    call.cancel()
    await parked(api, 0)


async def test_waiting_call_is_answered_when_the_server_stops(api: Running) -> None:
    call = waiting(api, await submitted(api))
    await parked(api, 1)
    api.server.stop()
    assert (await call).code == "result_timeout"


async def test_result_of_another_workspace_does_not_exist(guarded: Running) -> None:
    queue = guarded.state.queue
    task_id = (await queue.submit(type="code")).id
    other = await queue.in_workspace("other").tokens.create("ci", ["read"])
    reply = await waiting(guarded, task_id, headers={"Authorization": f"Bearer {other.secret}"})
    assert (reply.status, reply.code) == (404, "not_found")


async def test_revoked_token_gets_no_result(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "FRESH_SEC", 0.0)
    queue = guarded.state.queue
    task_id = (await queue.submit(type="code")).id
    made = await queue.tokens.create("ci", ["read"])
    call = waiting(guarded, task_id, headers={"Authorization": f"Bearer {made.secret}"})
    await parked(guarded, 1)
    await queue.tokens.revoke(made.id)
    await queue.cancel(task_id)
    assert (await call).status == 401
