"""Workspaces of one server belong to strangers: no workspace token controls the server itself."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.access import authenticator
from shiftwork.model.errors import StoreUnavailable
from tests.conformance.steps import give_folder
from tests.server.running import Running, running
from tests.server.test_access import token
from tests.server.watching import connect, watch
from tests.worker.steps import until


async def test_snapshots_require_the_server_scope(guarded: Running) -> None:
    tenant = await token(guarded.state.queue.in_workspace("tenant"), "admin")
    operator = await token(guarded.state.queue, "server")
    for method in ("GET", "POST"):
        refused = await guarded.call(method, "/api/snapshots", headers=tenant)
        assert (refused.status, refused.code, refused.json["facts"]["needs"]) == (403, "forbidden", "server")
    taken = (await guarded.call("POST", "/api/snapshots", headers=operator)).json
    assert (await guarded.get("/api/snapshots", headers=operator))["snapshots"] == [taken]


@pytest.mark.requirement("C-092")
async def test_without_tokens_local_caller_can_use_snapshots(api: Running) -> None:
    give_folder(api.state.queue)
    taken = (await api.call("POST", "/api/snapshots")).json
    assert (await api.get("/api/snapshots"))["snapshots"] == [taken]


async def test_second_snapshot_within_a_minute_is_refused(guarded: Running) -> None:
    operator = await token(guarded.state.queue, "server")
    clock = guarded.state.clock
    assert clock is not None
    assert (await guarded.call("POST", "/api/snapshots", headers=operator)).status == 201
    refused = await guarded.call("POST", "/api/snapshots", headers=operator)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    clock.advance(60)
    assert (await guarded.call("POST", "/api/snapshots", headers=operator)).status == 201


async def test_workspace_admin_cannot_grant_or_revoke_the_server_scope(guarded: Running) -> None:
    queue = guarded.state.queue
    admin, operator = await token(queue, "admin"), await queue.tokens.create("operations", ["admin", "server"])
    wanted = {"name": "mine", "scopes": ["read", "server"]}
    refused = await guarded.call("POST", "/api/tokens", wanted, headers=admin)
    assert (refused.status, refused.json["facts"]["needs"]) == (403, "server")
    refused = await guarded.call("DELETE", f"/api/tokens/{operator.id}", headers=admin)
    assert (refused.status, refused.json["facts"]["needs"]) == (403, "server")
    header = {"Authorization": f"Bearer {operator.secret}"}
    made = await guarded.post("/api/tokens", wanted, headers=header)
    assert made["scopes"] == ["read", "server"]
    assert (await guarded.call("DELETE", f"/api/tokens/{operator.id}", headers=header)).status == 200


@pytest.mark.parametrize(
    "change",
    [{"set": {"snapshots.keep": 1}}, {"set": {"maintenance.reclaim_sec": 9e9}}, {"unset": ["operation_max_sec"]}],
)
async def test_server_wide_settings_require_the_server_scope(guarded: Running, change: dict[str, object]) -> None:
    admin, operator = await token(guarded.state.queue, "admin"), await token(guarded.state.queue, "admin", "server")
    refused = await guarded.call("PATCH", "/api/settings", change, headers=admin)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert (await guarded.call("PATCH", "/api/settings", change, headers=operator)).status == 200


async def test_token_has_a_limited_share_of_streams(guarded: Running) -> None:
    guarded.state.hub.stream_limit.most = 8
    queue = guarded.state.queue
    greedy, sibling = await token(queue, "read"), await token(queue, "read")
    other = await token(queue.in_workspace("b"), "read")
    async with AsyncExitStack() as stack:
        for header in (greedy, greedy):
            await stack.enter_async_context(watch(guarded.http, guarded.url, headers=header))
        live = await guarded.call("GET", "/api/events", headers={**greedy, "accept": "text/event-stream"})
        assert (live.status, live.code) == (429, "too_many_requests")
        assert int(live.headers["retry-after"]) > 0
        poll = await guarded.call("GET", "/api/events?wait_sec=25&after=now", headers=greedy)
        assert (poll.status, poll.code) == (429, "too_many_requests")
        async with connect(guarded.http, guarded.url, headers=greedy) as third:
            assert (await third.message())["code"] == "too_many_requests"
            assert await third.end() == 1013
        for header in (sibling, sibling):
            await stack.enter_async_context(watch(guarded.http, guarded.url, headers=header))
        last = await guarded.call(
            "GET", "/api/events", headers={**await token(queue, "read"), "accept": "text/event-stream"}
        )
        assert (last.status, "workspace" in last.json["detail"]) == (429, True)
        await stack.enter_async_context(watch(guarded.http, guarded.url, headers=other))


async def test_token_has_a_limited_share_of_waiting_claims(guarded: Running) -> None:
    guarded.state.waits.most = 4
    header, other = await token(guarded.state.queue, "work"), await token(guarded.state.queue, "work")
    waits = {"agent_id": "ada", "wait_sec": 25}
    waiting = asyncio.create_task(guarded.call("POST", "/api/tasks/claim", waits, headers=header))
    await until(lambda: bool(guarded.state.queue.executor.shared.claim_waiters._waiters))
    refused = await guarded.call("POST", "/api/tasks/claim", waits, headers=header)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    at_once = await guarded.call("POST", "/api/tasks/claim", {"agent_id": "ada"}, headers=header)
    assert at_once.status == 200, "a claim that does not wait takes no place"
    of_other = await guarded.call("POST", "/api/tasks/claim", {"agent_id": "b", "wait_sec": 0.01}, headers=other)
    assert of_other.status == 200
    await guarded.state.queue.submit(type="noop")
    assert len((await waiting).json["assignments"]) == 1


async def has_looked(queue: Queue, agent_id: str) -> bool:
    """Return whether an agent is recorded, which its first claim does."""
    return agent_id in {agent.id for agent in await queue.agents.list()}


@pytest.mark.parametrize("who", [{"agent_id": "ada"}, {"runtime_id": "host"}])
@pytest.mark.parametrize("wakeup", ["notify", "poll"])
async def test_waiting_claim_of_a_revoked_token_gets_no_task(
    guarded: Running, monkeypatch: pytest.MonkeyPatch, who: dict[str, str], wakeup: str
) -> None:
    monkeypatch.setattr(authenticator, "FRESH_SEC", 0.0)
    queue = guarded.state.queue
    await queue.settings.change({"wakeup": wakeup, "poll_interval_sec": 0.05})
    made = await queue.tokens.create("worker", ["work"])
    header = {"Authorization": f"Bearer {made.secret}"}
    waiting = asyncio.create_task(guarded.call("POST", "/api/tasks/claim", {**who, "wait_sec": 25}, headers=header))
    await until(lambda: has_looked(queue, *who.values()))
    await queue.tokens.revoke(made.id)
    task = await queue.submit(type="noop")
    refused = await waiting
    assert (refused.status, refused.code) == (401, "unauthorized")
    assert (await queue.get(task.id)).status == "ready"


async def test_quota_is_set_by_operator_and_shown_to_workspace(guarded: Running) -> None:
    tenant = await token(guarded.state.queue.in_workspace("tenant"), "admin")
    operator = await token(guarded.state.queue, "server")
    quota = {"max_tasks": 1, "submits_per_minute": 100}
    refused = await guarded.call("PUT", "/api/quotas/tenant", quota, headers=tenant)
    assert (refused.status, refused.json["facts"]["needs"]) == (403, "server")
    assert (await guarded.call("GET", "/api/quotas", headers=tenant)).status == 403
    assert (await guarded.call("PUT", "/api/quotas/tenant", quota, headers=operator)).status == 200
    assert (await guarded.get("/api/quota", headers=tenant))["max_tasks"] == 1
    assert (await guarded.get("/api/queue", headers=tenant))["quota"]["tasks"] == 0
    assert [each["workspace"] for each in (await guarded.get("/api/quotas", headers=operator))["quotas"]] == ["tenant"]
    await guarded.post("/api/tasks", {"type": "noop"}, headers=tenant)
    full = await guarded.call("POST", "/api/tasks", {"type": "noop"}, headers=tenant)
    assert (full.status, full.code) == (409, "quota_exceeded")
    await guarded.call("PUT", "/api/quotas/tenant", {"submits_per_minute": 1}, headers=operator)
    await guarded.post("/api/tasks", {"type": "noop"}, headers=tenant)
    slow = await guarded.call("POST", "/api/tasks", {"type": "noop"}, headers=tenant)
    assert (slow.status, slow.code) == (429, "too_many_requests")
    assert int(slow.headers["retry-after"]) == 60


async def test_server_wide_metrics_require_the_server_scope(guarded: Running) -> None:
    reader, operator = await token(guarded.state.queue, "read"), await token(guarded.state.queue, "server")
    guarded.state.queue.engine.conflict("lease_lost", agent="theirs")
    for header, shown in ((reader, False), (operator, True)):
        text = (await guarded.call("GET", "/metrics", headers=header)).body.decode()
        assert "tasks_dead_lettered_total" in text
        assert ("shiftwork_request_seconds" in text, "shiftwork_refused_writes_total" in text) == (shown, shown)


async def test_refused_cursor_does_not_reveal_the_end_of_the_log(guarded: Running) -> None:
    reader = await token(guarded.state.queue, "read")
    await guarded.state.queue.in_workspace("theirs").submit_many([{"type": "noop"}] * 30)
    refused = await guarded.call("GET", "/api/events?after=999999", headers=reader)
    assert (refused.status, refused.json["where"]) == (422, "after")
    assert not re.search(r"[0-9]", refused.json["detail"].replace("999999", ""))


async def test_every_answer_forbids_sniffing(api: Running) -> None:
    for method, path in (("GET", "/api/tasks"), ("GET", "/api/tasks/none"), ("GET", "/none"), ("PUT", "/api/tasks")):
        assert (await api.call(method, path)).headers["x-content-type-options"] == "nosniff"
    for path in ("/openapi.json", "/metrics", "/healthz", "/"):
        assert (await api.call("GET", path)).headers["x-content-type-options"] == "nosniff"


async def test_readiness_does_not_reveal_the_database_address(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_verb: object) -> None:
        raise StoreUnavailable("10.0.0.7:5432 refused user queue")

    monkeypatch.setattr(api.state.queue.engine.store, "read", broken)
    reply = await api.call("GET", "/readyz")
    assert (reply.status, reply.json["status"]) == (503, "unavailable")
    assert "10.0.0.7" not in reply.body.decode()


async def test_claim_folder_must_be_allowed_at_server_start(store_url: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours" / ".loki", tmp_path / "theirs" / ".loki"
    async with running(store_url, tokens=True, claim_folders=(str(ours),)) as server:
        admin = await token(server.state.queue.in_workspace("tenant"), "admin")
        change: Any
        for folder in (theirs, ours / ".." / ".." / "theirs" / ".loki"):
            change = {"set": {"claim_folder": str(folder)}}
            refused = await server.call("PATCH", "/api/settings", change, headers=admin)
            assert (refused.status, refused.json["where"]) == (403, "claim_folder")
        for change in ({"set": {"claim_folder": str(ours)}}, {"set": {"claim_folder": None}}):
            assert (await server.call("PATCH", "/api/settings", change, headers=admin)).status == 200
        change = {"unset": ["claim_folder"]}
        assert (await server.call("PATCH", "/api/settings", change, headers=admin)).status == 200
    assert not theirs.exists()


SINK = {"name": "inside", "kind": "webhook", "address": "http://127.0.0.1:9/", "allow_private": True}


async def test_private_sinks_must_be_allowed_at_server_start(store_url: str) -> None:
    async with running(store_url, tokens=True) as server:
        admin = await token(server.state.queue, "admin")
        refused = await server.call("POST", "/api/sinks", SINK, headers=admin)
        assert (refused.status, refused.json["where"]) == (403, "allow_private")
        assert "--private-sinks" in refused.json["hint"]
        public = {**SINK, "address": "https://example.com/", "allow_private": False}
        assert (await server.call("POST", "/api/sinks", public, headers=admin)).status == 201
        refused = await server.call("PATCH", "/api/sinks/inside", {"allow_private": True}, headers=admin)
        assert (refused.status, refused.json["where"]) == (403, "allow_private")
    async with running(store_url, tokens=True, private_sinks=True) as server:
        admin = await token(server.state.queue, "admin")
        assert (await server.call("POST", "/api/sinks", {**SINK, "name": "two"}, headers=admin)).status == 201


async def test_websocket_urls_are_not_logged(guarded: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with connect(guarded.http, guarded.url, "?token=sw_hush") as client:
        await client.message()
        await client.end()
    server_side = [record for record in caplog.records if not record.name.startswith("aiohttp")]
    assert not [record for record in server_side if "sw_hush" in record.getMessage()]


async def test_invalid_utf8_closes_a_websocket_without_traceback(
    api: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with watch(api.http, api.url) as client:
        await client.socket._writer.send_frame(b"\xff\xfe", aiohttp.WSMsgType.TEXT)
        assert await client.end() == 1007
    assert not [record for record in caplog.records if record.exc_info]
