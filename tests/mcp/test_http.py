"""MCP over HTTP: the access rules of the API, sessions, and the current protocol without sessions."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp.client.auth.utils import extract_resource_metadata_from_www_auth
from mcp.shared.auth import ProtectedResourceMetadata
from mcp.shared.exceptions import MCPError

from shiftwork import Client, Queue
from shiftwork.access import authenticator
from shiftwork.mcp import http_transport
from shiftwork.mcp.http_transport import ListenAddress, check_address
from shiftwork.mcp.mcp_session import McpSession
from shiftwork.model.errors import InputError, TooManyRequests
from shiftwork.testing import MovedClock, pass_time
from shiftwork.wire import protocol
from shiftwork.wire.resource_metadata import ProtectedResource, check_url
from tests.cli.terminal import Terminal
from tests.mcp.scripted import PAGE, work_to_the_end
from tests.mcp.talking import MODES, PATIENCE_SEC, over_http, serving
from tests.server import raw
from tests.server.running import running
from tests.worker.steps import until

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("mode", MODES)
async def test_scripted_agent_completes_a_dag(queue: Queue, clock: MovedClock, mode: str) -> None:
    async with serving(queue, agent_id="crab") as (_, url), over_http(url, mode=mode) as agent:
        made = await agent("submit", title="Page", tasks=PAGE)
        done = await work_to_the_end(agent)
        await pass_time(queue, clock, 3600)
        done += await work_to_the_end(agent)
    assert sorted(done) == ["ask", "ask", "draw", "publish", "research", "write"]
    dag = await queue.dags.get(made["dag_id"])
    assert (dag.status, dag.done) == ("completed", 6)


async def test_each_client_can_be_its_own_agent(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    async with serving(queue) as (_, url):
        for name in ("ada", "bob"):
            async with over_http(f"{url}?agent={name}") as agent:
                task = await agent.take()
            assert (await queue.get(task["task_id"])).claim.agent_id == name
    assert {agent.id for agent in await queue.agents.list()} == {"ada", "bob"}


async def test_ended_session_keeps_no_claim(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with serving(queue, agent_id="crab") as (mcp_server, url):
        async with over_http(url, mode="legacy") as agent:
            await agent.take()
            assert len(McpSession(mcp_server, queue, "crab").holding) == 1
        assert McpSession(mcp_server, queue, "crab").holding == []
        clock.advance(100)
        await mcp_server.keeper.beat()
        await pass_time(queue, clock, 0)
    assert (await queue.get(made.id)).failure_reason == "heartbeat_timeout"


async def test_client_without_a_session_is_kept_until_its_timeout(queue: Queue, clock: MovedClock) -> None:
    """The current protocol has no sessions: a killed client looks like an idle one."""
    made = await queue.submit(type="code")
    async with serving(queue, agent_id="crab", keep_sec=300) as (mcp_server, url):
        async with over_http(url) as agent:
            await agent.take()
        for _ in range(10):
            clock.advance(30)
            await mcp_server.keeper.beat()
            await pass_time(queue, clock, 0)
        assert (await queue.get(made.id)).status == "running"
        clock.advance(1)
        await mcp_server.keeper.beat()
        await pass_time(queue, clock, 90)
    assert (await queue.get(made.id)).failure_reason == "heartbeat_timeout"


async def test_mcp_works_with_a_remote_server(queue: Queue) -> None:
    async with running(queue.url) as server, await Client.open(server.url) as client, serving(client) as (_, url):
        async with over_http(url) as agent:
            (made,) = (await agent("submit", tasks=[{"type": "code"}]))["tasks"]
            task = await agent.take()
            await agent("complete", token=task["token"], text="done")
        with pytest.raises(InputError, match="tokens cannot be checked through another server"):
            async with serving(client, tokens=True):
                pass
    assert (await queue.get(made["task_id"])).status == "completed"


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SEC) as caller:
        yield caller


async def test_token_scope_decides_the_allowed_tools(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}, {"type": "code"}])
    secrets = {
        name: (await queue.tokens.create(name, scopes)).secret
        for name, scopes in {"worker": ["work"], "other": ["work"], "boss": ["operate"]}.items()
    }
    async with serving(queue, tokens=True) as (_, url):
        async with over_http(url, **bearer(secrets["worker"])) as agent:
            assert "claim" in await agent.tools()
            assert "submit" not in await agent.tools()
            token = (await agent.take())["token"]
            refused = await agent.refusal("submit", tasks=[{"type": "code"}])
            assert (refused["code"], refused["needs"]) == ("forbidden", "submit")
        async with over_http(url, **bearer(secrets["other"])) as agent:
            assert (await agent.refusal("complete", token=token))["code"] == "not_your_claim"
            assert (await agent("heartbeat", token=token))["action"] == "lost"
        async with over_http(url, **bearer(secrets["boss"])) as agent:
            assert (await agent("get", task_id=made[0].id))["agent_id"] == "worker"
            await agent("cancel", task_id=made[0].id)
    assert (await queue.tasks.history(made[0].id)).events[-1].actor == "token:boss"


async def test_token_is_limited_to_its_workspace(queue: Queue) -> None:
    secret = (await queue.in_workspace("mine").tokens.create("crab", ["admin"])).secret
    made = await queue.submit(type="code")
    async with serving(queue, tokens=True) as (_, url), over_http(url, **bearer(secret)) as agent:
        assert "task" not in await agent("claim")
        assert (await agent.refusal("get", task_id=made.id))["code"] == "not_found"
        with pytest.raises(MCPError, match="not_found"):
            await agent.client.read_resource(f"shiftwork://task/{made.id}")


@pytest.mark.parametrize("headers", [{}, bearer("sw_none"), {"authorization": "Basic abc"}])
async def test_request_without_a_token_is_refused(
    queue: Queue, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    async with serving(queue, tokens=True) as (_, url):
        answer = await http.post(url, json=HELLO, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer ")


async def test_session_belongs_to_the_token_that_started_it(queue: Queue, http: httpx2.AsyncClient) -> None:
    ours, theirs = [(await queue.tokens.create(name, ["work"])).secret for name in ("ours", "theirs")]
    async with serving(queue, tokens=True) as (_, url):
        begun = await http.post(url, json=HELLO, headers=bearer(ours))
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await http.post(url, json=asked, headers={**bearer(theirs), **session})).status_code == 404
        assert (await http.delete(url, headers={**bearer(theirs), **session})).status_code == 404
        assert (await http.post(url, json=asked, headers={**bearer(ours), **session})).status_code == 200


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_pages_of_other_sites_are_refused(
    queue: Queue, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    async with serving(queue) as (_, url):
        answer = await http.post(url, json=HELLO, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        answer = await http.post(url, json=HELLO, headers={"origin": "http://localhost:1"})
        assert (answer.status_code, answer.json()["where"]) == (403, "Origin")
        own = url.removesuffix("/mcp")
        assert (await http.post(url, json=HELLO, headers={"origin": own})).status_code == 200


async def test_too_long_agent_name_is_refused(queue: Queue, http: httpx2.AsyncClient) -> None:
    async with serving(queue) as (_, url):
        answer = await http.post(f"{url}?agent={'x' * 300}", json=HELLO)
    assert (answer.status_code, answer.json()["where"]) == (413, "agent")


def test_public_host_requires_tokens() -> None:
    with pytest.raises(InputError, match="would accept anyone"):
        check_address(ListenAddress("0.0.0.0", 0))  # noqa: S104  # which is refused
    check_address(ListenAddress("0.0.0.0", 0, tokens=True))  # noqa: S104  # not bound


async def test_incomplete_request_is_disconnected(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_REQUEST_SEC", 0.05)
    head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
    half = (b"", head[:30], head + b"content-length: 9\r\n\r\n{")
    async with serving(queue) as (_, url):
        for sent in half:
            async with raw.line(url.removesuffix("/mcp")) as line:
                line.send(sent)
                assert await line.is_over()


async def test_token_has_a_limited_share_of_sessions(
    queue: Queue, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transport, "MAX_PER_TOKEN", 2)
    ours, theirs = [(await queue.tokens.create(name, ["read"])).secret for name in ("ours", "theirs")]
    async with serving(queue, tokens=True) as (_, url):
        begun = [await http.post(url, json=HELLO, headers=bearer(ours)) for _ in range(3)]
        assert [answer.status_code for answer in begun] == [200, 200, 429]
        assert begun[2].json()["code"] == "too_many_requests"
        assert int(begun[2].headers["retry-after"]) > 0
        assert (await http.post(url, json=HELLO, headers=bearer(theirs))).status_code == 200
        one = {**bearer(ours), "mcp-session-id": begun[0].headers["mcp-session-id"]}
        assert (await http.delete(url, headers=one)).status_code == 200
        assert (await http.post(url, json=HELLO, headers=bearer(ours))).status_code == 200


def test_idle_session_is_no_longer_counted() -> None:
    now = 0.0
    open_ones = http_transport.Sessions(lambda: now)
    open_ones.most_of_token = 1
    open_ones.opened("a", "token")
    open_ones.begin("a")
    now = http_transport.IDLE_SEC + 1
    with pytest.raises(TooManyRequests):
        open_ones.check("token")
    open_ones.end("a")
    now += http_transport.IDLE_SEC + 1
    open_ones.check("token")


async def test_idle_session_ends_after_its_timeout(
    queue: Queue, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp")
    monkeypatch.setattr(http_transport, "IDLE_SEC", 0.05)
    async with serving(queue) as (_, url):
        begun = await http.post(url, json=HELLO)
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await until(lambda: "idle timeout" in caplog.text)
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await http.post(url, json=asked, headers=session)).status_code == 404


async def test_revoked_token_gets_no_heartbeats(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "FRESH_SEC", 0.0)
    made = await queue.submit(type="code")
    token = await queue.tokens.create("worker", ["work"])
    async with serving(queue, tokens=True) as (mcp_server, url), over_http(url, **bearer(token.secret)) as agent:
        await agent.take()
        clock.advance(60)
        await mcp_server.keeper.beat()
        beaten = (await queue.get(made.id)).claim.heartbeat_at
        assert beaten == clock()
        await queue.tokens.revoke(token.id)
        clock.advance(60)
        await mcp_server.keeper.beat()
        assert (await queue.get(made.id)).claim.heartbeat_at == beaten
        assert not mcp_server.keeper.held_by("worker", token.id)


def test_foreign_http_host_is_named_with_its_option(terminal: Terminal) -> None:
    done = terminal.run("mcp", "--http", "nosuch.invalid:0", "--tokens")
    assert done.code == 2
    assert "cannot listen on nosuch.invalid" in done.err
    assert "(at --http)" in done.err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("mcp --http 0.0.0.0:0", "--tokens"),
        ("mcp --http nowhere", "is not HOST:PORT"),
        ("mcp --http 127.0.0.1:99999", "is not HOST:PORT"),
        ("mcp --tokens", "--tokens is for --http"),
        ("mcp --role boss", "boss"),
        ("mcp --keep soon", "not a duration"),
    ],
)
def test_invalid_command_line_is_refused_before_creating_a_queue(terminal: Terminal, line: str, what: str) -> None:
    done = terminal.run(*line.split(" "))
    assert done.code == 2
    assert what in done.err
    assert done.out == ""
    assert "there is no queue" in terminal.run("list").err


async def test_command_prints_its_url_and_stops_on_signal(store_url: str) -> None:
    line = [sys.executable, "-m", "shiftwork", "mcp", "--store", store_url, "--http", "127.0.0.1:0", "--json"]
    process = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SEC):
        url: Any = json.loads(await process.stdout.readline())["url"]
        async with over_http(url) as agent:
            await agent("submit", tasks=[{"type": "code"}])
            assert (await agent.take())["type"] == "code"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_client_without_a_token_learns_how_to_get_one(queue: Queue, http: httpx2.AsyncClient) -> None:
    """The SDK's own client side reads both: the challenge of the answer 401, and the metadata it names."""
    async with serving(queue, tokens=True) as (_, url):
        refused = await http.post(url, json={})
        assert refused.status_code == 401
        named = extract_resource_metadata_from_www_auth(refused)
        assert named == url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        for place in (named, url.replace("/mcp", "/.well-known/oauth-protected-resource")):
            found = await http.get(place)
            assert found.headers["content-type"] == "application/json"
            described = ProtectedResourceMetadata.model_validate(found.json() | {"authorization_servers": ["http://a"]})
            assert (str(described.resource), described.bearer_methods_supported) == (url, ["header"])
            assert described.scopes_supported == ["read", "submit", "work", "operate", "admin"]
            assert "authorization_servers" not in found.json()
        odd = await http.get(named, headers={"host": 'evil"host'})
        assert odd.json()["resource"] == "http://localhost/mcp"


async def test_metadata_has_the_public_address_and_the_authorization_server(queue: Queue) -> None:
    public = ProtectedResource(
        name="Shiftwork", path="/mcp", public_url="https://q.example/", authorization_servers=("https://login.example",)
    )
    headers = {"host": "127.0.0.1:8090"}
    assert public.document(headers, "http")["resource"] == "https://q.example/mcp"
    assert public.document(headers, "http")["authorization_servers"] == ["https://login.example"]
    expected = 'Bearer resource_metadata="https://q.example/.well-known/oauth-protected-resource/mcp"'
    assert public.challenge(headers, "http") == expected


async def test_server_without_tokens_has_no_metadata(queue: Queue, http: httpx2.AsyncClient) -> None:
    async with serving(queue) as (_, url):
        found = await http.get(url.replace("/mcp", "/.well-known/oauth-protected-resource"))
        assert found.status_code == 404


@pytest.mark.parametrize(
    "given",
    [
        "",
        "q.example",
        "ftp://q.example",
        "https://",
        "https://u:p@q.example",
        'https://q"',
        "https://q?a=1",
        "https://[::",
    ],
)
def test_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        check_url(given, "--public-url")


async def test_token_without_the_work_scope_can_wait_for_a_result(queue: Queue) -> None:
    """A waiting call rechecks its token for the scopes of the call, not for `work`."""
    secret = (await queue.tokens.create("planner", ["submit"])).secret
    await queue.agents.register(id="crab")
    async with serving(queue, tokens=True) as (_, url), over_http(url, authorization=f"Bearer {secret}") as agent:
        made = await agent("submit", tasks=[{"type": "code"}])
        waiting = asyncio.create_task(agent("get", task_id=made["tasks"][0]["task_id"], wait_sec=20))
        (assigned,) = await queue.claim("crab", start=True)
        await queue.complete(assigned.token, text="done")
        assert (await waiting)["result"]["text"] == "done"
