"""A repeated request has no second effect: at every route, after a crash, and on two servers at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from tests.conformance.steps import everything
from tests.server import processes, raw
from tests.server.endpoints import BY_NAME, CALLS, Call, changing, waiting
from tests.server.running import Reply, Running, running
from tests.worker.steps import until

KEY = {"Idempotency-Key": "k-1"}


async def send(api: Running, name: str, call: Call, **options: Any) -> Reply:
    """Call each endpoint in a separate workspace, so that one test covers all."""
    endpoint = BY_NAME[name]
    path = call.path(endpoint, workspace=name)
    return await api.call(endpoint.method, path, call.body, **{"headers": KEY, **options})


def same(name: str, reply: Reply) -> Any:
    """Return the parts of an answer that must be equal in its repeat."""
    if name == "claims_request":  # the task is shown as it is now
        return reply.status, [held["token"] for held in reply.json["assignments"]]
    return reply.status, reply.json if reply.body else None


def test_every_changing_route_is_covered() -> None:
    assert {endpoint.name for endpoint in changing()} <= CALLS.keys()


async def test_repeated_request_gets_same_answer_and_changes_nothing(api: Running) -> None:
    for endpoint in changing():
        call = await CALLS[endpoint.name](api.state.queue.in_workspace(endpoint.name))
        first = await send(api, endpoint.name, call)
        assert first.status == endpoint.status, (endpoint.name, first)
        before = await everything(api.state.queue)
        again = await send(api, endpoint.name, call)
        assert await everything(api.state.queue) == before, endpoint.name
        if endpoint.name in {"tokens_create", "sinks_add"}:
            assert (again.status, again.code) == (409, "conflict"), "its secret is not kept"
            assert first.json.get("id", "'ops'") in again.json["detail"]
        else:
            assert same(endpoint.name, again) == same(endpoint.name, first), endpoint.name


async def test_different_request_with_the_same_key_is_refused(api: Running) -> None:
    for endpoint in changing():
        call = await CALLS[endpoint.name](api.state.queue.in_workspace(endpoint.name))
        assert (await send(api, endpoint.name, call)).status == endpoint.status, endpoint.name
        before = await everything(api.state.queue)
        other = await send(api, endpoint.name, call._replace(body=None), data=json.dumps(call.body or {}) + " ")
        assert await everything(api.state.queue) == before, endpoint.name
        text = (
            "invalid_input" if endpoint.name == "artifacts_put_known" else "idempotency_key_reused"
        )  # its path says what
        assert (other.status, other.code) == (422, text), (endpoint.name, other)


async def test_idempotency_key_belongs_to_one_workspace(api: Running) -> None:
    ours = await api.post("/api/tasks", {"type": "noop"}, headers=KEY)
    theirs = await api.post("/api/tasks?workspace=theirs", {"type": "noop"}, headers=KEY)
    assert ours["id"] != theirs["id"]


async def test_refused_request_leaves_its_key_free(api: Running) -> None:
    refused = await api.call("POST", f"/api/tasks/{await waiting(api.state.queue)}/rerun", headers=KEY)
    assert refused.code == "wrong_state"
    assert (await api.call("POST", "/api/tasks", {"type": "noop"}, headers=KEY)).status == 201


@pytest.mark.parametrize("key", ["", " ", "k" * 256, "schlüssel"])
async def test_invalid_idempotency_key_is_refused(api: Running, key: str) -> None:
    reply = await api.call("POST", "/api/tasks", {"type": "noop"}, headers={"Idempotency-Key": key})
    assert (reply.status, reply.code, reply.json["where"]) == (422, "invalid_input", "Idempotency-Key")
    assert (await api.get("/api/tasks"))["tasks"] == []


async def test_repeated_claim_returns_the_same_claim(api: Running) -> None:
    for _ in range(3):
        await waiting(api.state.queue)
    await api.post("/api/agents", {"id": "ada", "max_concurrent_tasks": 9})
    claim = {"agent_id": "ada", "count": 2}
    first = await api.post("/api/tasks/claim", claim, headers=KEY)
    again = await api.post("/api/tasks/claim", claim, headers=KEY)
    assert [held["token"] for held in again["assignments"]] == [held["token"] for held in first["assignments"]]
    assert len(first["assignments"]) == 2
    assert (await api.get("/api/queue"))["counts"] == {"claimed": 2, "ready": 1}


async def test_repeated_claim_returns_only_live_claims(api: Running) -> None:
    await waiting(api.state.queue)
    first = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}, headers=KEY)
    (held_,) = first["assignments"]
    await api.post(f"/api/tasks/{held_['task']['id']}/complete", {"token": held_["token"]})
    await waiting(api.state.queue)
    again = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True}, headers=KEY)
    assert again["assignments"] == []
    assert (await api.get("/api/queue"))["counts"] == {"completed": 1, "ready": 1}


async def test_claim_without_work_can_be_repeated(api: Running) -> None:
    assert (await api.post("/api/tasks/claim", {"agent_id": "ada"}, headers=KEY))["assignments"] == []
    await waiting(api.state.queue)
    assert len((await api.post("/api/tasks/claim", {"agent_id": "ada"}, headers=KEY))["assignments"]) == 1


async def test_claim_key_is_kept_ten_minutes_and_others_a_day(api: Running) -> None:
    await api.post("/api/tasks", {"type": "noop"}, headers={"Idempotency-Key": "submit"})
    await api.post("/api/tasks/claim", {"agent_id": "ada"}, headers={"Idempotency-Key": "claim"})
    left = []
    for seconds in (590, 4_000, 81_000, 4_000):
        await api.pass_time(seconds)
        left.append(len((await everything(api.state.queue))["replies"]))
    assert left == [2, 1, 1, 0]


async def test_repeated_runtime_claim_claims_once(api: Running) -> None:
    for agent in ("ada", "bob"):
        await waiting(api.state.queue, target_agent_id=agent)
    await waiting(api.state.queue)
    claim = {"runtime_id": "host", "count": 2}
    first, again = [await api.post("/api/tasks/claim", claim, headers=KEY) for _ in range(2)]
    assert {held["token"] for held in again["assignments"]} == {held["token"] for held in first["assignments"]}
    assert (await api.get("/api/queue"))["counts"] == {"claimed": 2, "ready": 1}


BODY = b'{"type": "noop"}'
SUBMIT = raw.request("POST", "/api/tasks", BODY, idempotency_key="k-1")


async def test_disconnected_client_can_repeat_its_request(api: Running) -> None:
    async with raw.line(api.url) as line:
        line.send(SUBMIT)
    made = await api.call("POST", "/api/tasks", data=BODY, headers=KEY)
    assert made.status == 201
    assert [task["id"] for task in (await api.get("/api/tasks"))["tasks"]] == [made.json["id"]]


async def test_request_is_not_repeated_after_server_killed_before_answering(store_url: str) -> None:
    """The answer is never read, the effect is in the store, and the process dies."""
    async with Queue.open(store_url) as queue, aiohttp.ClientSession() as http:
        async with await processes.start(store_url) as server, raw.line(server.url) as line:
            line.send(SUBMIT)
            await until(lambda: has_tasks(queue, 1))
            await server.kill()
        async with await processes.start(store_url) as server:
            made = await (await http.post(server.url + "/api/tasks", data=BODY, headers=KEY)).json()
        assert [task.id for task in (await queue.tasks.list()).tasks] == [made["id"]]


async def has_tasks(queue: Queue, count: int) -> bool:
    return len((await queue.tasks.list()).tasks) == count


@pytest.mark.parametrize(
    "name",
    ["submit", "claims_request", "spawn", "tasks_rerun", "dead_letters_review", "tasks_update", "agents_register"],
)
async def test_same_request_on_two_servers_has_one_effect(name: str, store_url: str) -> None:
    endpoint = BY_NAME[name]
    async with running(store_url) as one, running(store_url) as two:
        await one.state.queue.agents.register(id="ada", max_concurrent_tasks=99)
        call = await CALLS[name](one.state.queue)
        for _ in range(5):
            await waiting(one.state.queue)  # more to claim, if it were claimed twice
        sent = [server.call(endpoint.method, call.path(endpoint), call.body, headers=KEY) for server in (one, two) * 5]
        replies = await asyncio.gather(*sent)
        assert [same(name, reply) for reply in replies] == [same(name, replies[0])] * 10
        assert replies[0].status == endpoint.status
        output = await one.state.queue.events(limit=1000)
        assert [event.verb for event in output.events].count(EFFECT[name]) == 1 + EXTRA.get(name, 0)


EFFECT = {
    "submit": "submitted",
    "claims_request": "claimed",
    "spawn": "waited",
    "tasks_rerun": "rerun",
    "dead_letters_review": "reviewed",
    "tasks_update": "updated",
    "agents_register": "agent_registered",
}
EXTRA = {"submit": 5, "agents_register": 1}
"""What the arrangement has done of the same kind."""
