"""MCP over HTTP: the same rules of access as the API, sessions, and a current protocol that has none."""

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
from mcp.shared.exceptions import MCPError

from shiftwork import Client, Queue
from shiftwork.core.errors import InputError, TooManyRequests
from shiftwork.mcp import over_http as over_http_module
from shiftwork.mcp import sessions
from shiftwork.mcp.desk import Seat
from shiftwork.mcp.over_http import Place, check_place
from shiftwork.testing import MovedClock, pass_time
from shiftwork.wire import access, protocol
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
async def test_a_scripted_agent_works_a_dag_to_its_end(queue: Queue, clock: MovedClock, mode: str) -> None:
    async with serving(queue, agent_id="crab") as (_, url), over_http(url, mode=mode) as agent:
        made = await agent("submit", title="Page", tasks=PAGE)
        done = await work_to_the_end(agent)
        await pass_time(queue, clock, 3600)
        done += await work_to_the_end(agent)
    assert sorted(done) == ["ask", "ask", "draw", "publish", "research", "write"]
    dag = await queue.dag(made["dag_id"])
    assert (dag.status, dag.done) == ("completed", 6)


async def test_each_client_may_be_an_agent_of_its_own(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "code"}])
    async with serving(queue) as (_, url):
        for name in ("ada", "bob"):
            async with over_http(f"{url}?agent={name}") as agent:
                task = await agent.take()
            assert (await queue.get(task["task_id"])).claim.agent_id == name
    assert {agent.id for agent in await queue.agents()} == {"ada", "bob"}


async def test_a_session_that_its_client_ends_keeps_nothing(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    async with serving(queue, agent_id="crab") as (desk, url):
        async with over_http(url, mode="legacy") as agent:
            await agent.take()
            assert len(Seat(desk, queue, "crab").holding) == 1
        assert Seat(desk, queue, "crab").holding == []
        clock.advance(100)
        await desk.keeper.beat()
        await pass_time(queue, clock, 0)
    assert (await queue.get(made.id)).failure_reason == "heartbeat_timeout"


async def test_a_client_without_a_session_is_kept_until_it_is_silent_for_too_long(
    queue: Queue, clock: MovedClock
) -> None:
    """The current protocol has no sessions: a client that was killed looks like one that thinks."""
    made = await queue.submit(type="code")
    async with serving(queue, agent_id="crab", keep_sec=300) as (desk, url):
        async with over_http(url) as agent:
            await agent.take()
        for _ in range(10):
            clock.advance(30)
            await desk.keeper.beat()
            await pass_time(queue, clock, 0)
        assert (await queue.get(made.id)).status == "running"
        clock.advance(1)
        await desk.keeper.beat()
        await pass_time(queue, clock, 90)
    assert (await queue.get(made.id)).failure_reason == "heartbeat_timeout"


async def test_it_serves_what_a_server_has(queue: Queue) -> None:
    async with running(queue.url) as server, await Client.open(server.url) as client, serving(client) as (_, url):
        async with over_http(url) as agent:
            (made,) = (await agent("submit", tasks=[{"type": "code"}]))["tasks"]
            task = await agent.take()
            await agent("complete", token=task["token"], text="done")
        with pytest.raises(InputError, match="tokens are checked where the queue is"):
            async with serving(client, tokens=True):
                pass
    assert (await queue.get(made["task_id"])).status == "completed"


# -- access ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(headers=ACCEPT, timeout=PATIENCE_SEC) as caller:
        yield caller


async def test_a_token_decides_what_its_bearer_may_do(queue: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}, {"type": "code"}])
    secrets = {
        name: (await queue.create_token(name, scopes)).secret
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
    assert (await queue.history(made[0].id))[-1].actor == "token:boss"


async def test_a_token_has_its_own_workspace(queue: Queue) -> None:
    secret = (await queue.in_workspace("mine").create_token("crab", ["admin"])).secret
    made = await queue.submit(type="code")
    async with serving(queue, tokens=True) as (_, url), over_http(url, **bearer(secret)) as agent:
        assert "task" not in await agent("claim")
        assert (await agent.refusal("get", task_id=made.id))["code"] == "not_found"
        with pytest.raises(MCPError, match="not_found"):
            await agent.client.read_resource(f"shiftwork://task/{made.id}")


@pytest.mark.parametrize("headers", [{}, bearer("sw_none"), {"authorization": "Basic abc"}])
async def test_without_a_token_nobody_is_let_in(
    queue: Queue, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    async with serving(queue, tokens=True) as (_, url):
        answer = await http.post(url, json=HELLO, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_session_belongs_to_the_token_that_began_it(queue: Queue, http: httpx2.AsyncClient) -> None:
    ours, theirs = [(await queue.create_token(name, ["work"])).secret for name in ("ours", "theirs")]
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


async def test_an_agent_needs_a_name(queue: Queue, http: httpx2.AsyncClient) -> None:
    async with serving(queue) as (_, url):
        answer = await http.post(f"{url}?agent={'x' * 300}", json=HELLO)
    assert (answer.status_code, answer.json()["where"]) == (413, "agent")


def test_a_server_that_all_could_reach_asks_for_tokens() -> None:
    with pytest.raises(InputError, match="would let everybody in"):
        check_place(Place("0.0.0.0", 0))  # noqa: S104  # which is refused
    check_place(Place("0.0.0.0", 0, tokens=True))  # noqa: S104  # not bound


# -- bounds ------------------------------------------------------------------------------------------------------


async def test_half_a_request_is_hung_up_on(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SLOWEST_REQUEST_SEC", 0.05)
    head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
    half = (b"", head[:30], head + b"content-length: 9\r\n\r\n{")
    async with serving(queue) as (_, url):
        for sent in half:
            async with raw.line(url.removesuffix("/mcp")) as line:
                line.send(sent)
                assert await line.is_over()


async def test_a_token_has_a_share_of_the_sessions(
    queue: Queue, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_OF_TOKEN", 2)
    ours, theirs = [(await queue.create_token(name, ["read"])).secret for name in ("ours", "theirs")]
    async with serving(queue, tokens=True) as (_, url):
        begun = [await http.post(url, json=HELLO, headers=bearer(ours)) for _ in range(3)]
        assert [answer.status_code for answer in begun] == [200, 200, 429]
        assert begun[2].json()["code"] == "too_many_requests"
        assert int(begun[2].headers["retry-after"]) > 0
        assert (await http.post(url, json=HELLO, headers=bearer(theirs))).status_code == 200
        one = {**bearer(ours), "mcp-session-id": begun[0].headers["mcp-session-id"]}
        assert (await http.delete(url, headers=one)).status_code == 200
        assert (await http.post(url, json=HELLO, headers=bearer(ours))).status_code == 200


def test_an_idle_session_counts_no_longer() -> None:
    now = 0.0
    open_ones = sessions.Sessions(lambda: now)
    open_ones.most_of_token = 1
    open_ones.opened("a", "token")
    open_ones.begin("a")
    now = sessions.IDLE_SEC + 1
    with pytest.raises(TooManyRequests):
        open_ones.check("token")
    open_ones.end("a")
    now += sessions.IDLE_SEC + 1
    open_ones.check("token")


async def test_an_idle_session_ends(
    queue: Queue, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(over_http_module, "IDLE_SEC", 0.05)
    async with serving(queue) as (_, url):
        begun = await http.post(url, json=HELLO)
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await until(lambda: "idle timeout" in caplog.text)
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await http.post(url, json=asked, headers=session)).status_code == 404


async def test_a_revoked_token_has_no_heartbeats_sent(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FRESH_SEC", 0.0)
    made = await queue.submit(type="code")
    token = await queue.create_token("worker", ["work"])
    async with serving(queue, tokens=True) as (desk, url), over_http(url, **bearer(token.secret)) as agent:
        await agent.take()
        clock.advance(60)
        await desk.keeper.beat()
        beaten = (await queue.get(made.id)).claim.heartbeat_at
        assert beaten == clock()
        await queue.revoke_token(token.id)
        clock.advance(60)
        await desk.keeper.beat()
        assert (await queue.get(made.id)).claim.heartbeat_at == beaten
        assert not desk.keeper.held_by("worker", token.id)


# -- the command -------------------------------------------------------------------------------------------------


def test_a_host_that_is_not_this_machine_is_named_where_it_was_given(terminal: Terminal) -> None:
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
def test_a_wrong_line_is_refused_before_anything_is_made(terminal: Terminal, line: str, what: str) -> None:
    done = terminal.run(*line.split(" "))
    assert done.code == 2
    assert what in done.err
    assert done.out == ""
    assert "there is no queue" in terminal.run("list").err


async def test_the_command_says_where_it_serves_and_stops_when_told(store_url: str) -> None:
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
