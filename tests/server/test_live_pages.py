"""Events over plain HTTP: long polling, and server-sent events that resume."""

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from shiftwork import Queue
from shiftwork.server import hub, request_parsing
from shiftwork.server.routes import live
from tests.server import raw
from tests.server.running import Running, running
from tests.server.watching import Lines, follow
from tests.worker.steps import until


async def submit(api: Running, **fields: Any) -> str:
    return str((await api.post("/api/tasks", {"type": "write", **fields}))["id"])


def tasks(page: dict[str, Any]) -> list[str]:
    return [event["task_id"] for event in page["events"]]


async def test_event_pages_follow_without_a_gap(api: Running) -> None:
    made = [await submit(api) for _ in range(10)]
    seen: list[str] = []
    after = 0
    while len(seen) < 10:
        page = await api.get(f"/api/events?after={after}&limit=3")
        assert len(page["events"]) <= 3
        seen += tasks(page)
        after = page["next"]
    assert seen == made
    assert await api.get(f"/api/events?after={after}") == {"events": [], "next": after}


async def test_event_page_contains_all_matching_events(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PAGE", 7)
    first = await submit(api, type="rare")
    await api.post("/api/tasks", [{"type": "write"}] * 40)
    last = await submit(api, type="rare")
    assert tasks(await api.get("/api/events?type=rare")) == [first, last]
    page = await api.get("/api/events?type=rare&limit=1")
    assert tasks(page) == [first]
    assert tasks(await api.get(f"/api/events?type=rare&after={page['next']}")) == [last]
    monkeypatch.setattr(live, "MAX_SCANNED", 20)
    short = await api.get(f"/api/events?type=rare&after={page['next']}&wait_sec=25")
    assert (short["events"], page["next"] < short["next"] < 42) == ([], True)


async def test_event_page_in_a_view_has_view_names(api: Running) -> None:
    task_id = await submit(api)
    await api.post("/api/tasks/claim", {"agent_id": "ada", "start": True})
    page = await api.get("/api/events?view=aegis")
    assert [event["event"] for event in page["events"]] == ["task:queued", "task:dispatch", "task:running"]
    rest = await api.get(f"/api/events?view=aegis&after={page['events'][1]['cursor']}")
    assert [event["event"] for event in rest["events"]] == ["task:running"]
    ours = await api.get(f"/api/events?after={page['events'][1]['cursor']}")
    assert [(event["task_id"], event["names"]) for event in ours["events"]] == [(task_id, ["task.started"])]


async def test_event_page_waits_for_the_first_matching_event(api: Running) -> None:
    now = (await api.get("/api/events?after=now"))["next"]
    waiting = asyncio.create_task(api.get(f"/api/events?after={now}&type=wanted&wait_sec=25"))
    await until(lambda: api.state.hub.listeners == 1)
    await submit(api)
    wanted = await submit(api, type="wanted")
    assert tasks(await waiting) == [wanted]
    await until(lambda: api.state.hub.listeners == 0)


async def test_event_page_contains_everything_committed_before_the_request(api: Running, store_url: str) -> None:
    """Even if the server's shared reader has not read it yet."""
    async with follow(api.http, api.url), await Queue.open(store_url) as elsewhere:
        for number in range(1, 20):
            task_id = (await elsewhere.submit(type="write")).id
            assert tasks(await api.get(f"/api/events?after={number - 1}&wait_sec=25")) == [task_id]


async def test_event_page_is_empty_after_timeout_or_shutdown(store_url: str) -> None:
    async with running(store_url) as api:
        assert (await api.get("/api/events?wait_sec=0.01"))["events"] == []
        waiting = asyncio.create_task(api.get("/api/events?wait_sec=25"))
        await until(lambda: api.state.hub.listeners == 1)
        api.server.stop()
        assert await waiting == {"events": [], "next": 0}


async def test_disconnected_caller_leaves_no_listener(api: Running) -> None:
    waiting = asyncio.create_task(api.get("/api/events?wait_sec=25"))
    await until(lambda: api.state.hub.listeners == 1)
    waiting.cancel()
    await until(lambda: api.state.hub.listeners == 0)


async def test_cursor_beyond_the_end_of_the_log_is_refused(api: Running) -> None:
    await submit(api)
    end = (await api.get("/api/events?after=now"))["next"]
    assert await api.get(f"/api/events?after={end}") == {"events": [], "next": end}
    for query in (f"after={end + 1}", f"after={end + 2}-1", "after=99999999&wait_sec=25", "after=99&type=x&view=aegis"):
        reply = await api.call("GET", f"/api/events?{query}")
        assert (reply.status, reply.code, reply.json["where"]) == (422, "invalid_input", "after"), query


async def test_slow_body_of_an_event_request_is_refused(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing, "MAX_BODY_SEC", 0.01)
    async with raw.line(api.url) as line:
        line.send(b"GET /api/events?wait_sec=25 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n")
        reply = await line.answer()
    assert (reply.status, reply.json["code"], reply.json["where"]) == (400, "malformed", "body")
    described = await api.get("/openapi.json")
    reference = described["paths"]["/api/events"]["get"]["responses"]["400"]["$ref"]
    assert "malformed" in described["components"]["responses"][reference.rpartition("/")[2]]["description"]


async def test_invalid_event_query_is_refused_by_name(api: Running) -> None:
    for query in ("after=-1", "after=then", "limit=0", "wait_sec=26", "tusk=1", "view=latin"):
        reply = await api.call("GET", f"/api/events?{query}")
        assert (reply.status, reply.json["where"]) == (422, query.partition("=")[0])
    for query in ("dag=nobody", "task=nobody"):
        assert (await api.call("GET", f"/api/events?{query}")).code == "not_found"


async def to_the_end(lines: Lines) -> None:
    with suppress(EOFError):
        while True:
            await lines.event()


async def test_server_sent_events_have_their_cursor_as_id(api: Running) -> None:
    async with follow(api.http, api.url) as lines:
        made = [await submit(api) for _ in range(3)]
        reply = [await lines.event() for _ in range(6)]
        assert [(each["event"], each["task_id"]) for each in reply] == [
            (name, task_id) for task_id in made for name in ("task.created", "task.ready")
        ]


async def test_reconnecting_browser_resumes_after_its_last_event_id(api: Running) -> None:
    """Its URL stays the same: the last event id takes precedence."""
    made = [await submit(api) for _ in range(4)]
    seen: list[tuple[str, str]] = []
    last = ""
    for step in range(4):
        headers = {"last_event_id": last} if step else {}
        async with follow(api.http, api.url, "?after=0&view=factory", **headers) as lines:
            for _ in range(2 if step % 2 else 1):
                reply = await lines.event()
                seen.append((reply["task_id"], reply["event"]))
            assert lines.last_id is not None
            last = lines.last_id
    names = [(task_id, name) for task_id in made for name in ("task.created", "task.ready")]
    assert seen == names[:6]


async def test_client_without_events_resumes_from_its_start(api: Running) -> None:
    await submit(api)
    async with follow(api.http, api.url) as lines:
        began = lines.last_id
    assert began is not None
    missed = await submit(api)
    async with follow(api.http, api.url, last_event_id=began) as lines:
        assert (await lines.event())["task_id"] == missed


async def test_quiet_stream_sends_keepalives_with_cursor(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ALIVE_SEC", 0.01)
    async with follow(api.http, api.url, "?type=rare&after=0") as lines:
        for newest in (1, 2, 3):
            await submit(api)
            while (block := await lines.block()) != {"": "still here", "id": str(newest)}:
                assert "data" not in block


async def test_event_stream_ends_when_the_server_stops(store_url: str) -> None:
    async with running(store_url) as api, follow(api.http, api.url) as lines:
        await submit(api)
        await lines.event()
        api.server.stop()
        await to_the_end(lines)


async def test_event_stream_requires_a_token_and_ends_with_it(guarded: Running) -> None:
    refused = await guarded.call("GET", "/api/events", headers={"accept": "text/event-stream"})
    assert (refused.status, refused.code) == (401, "unauthorized")
    queue = guarded.state.queue.in_workspace("ours")
    token = await queue.tokens.create("watcher", ["read"])
    async with follow(guarded.http, guarded.url, authorization=f"Bearer {token.secret}") as lines:
        await guarded.state.queue.submit(type="write")
        mine = await queue.submit(type="write")
        assert (await lines.event())["task_id"] == mine.id
        await queue.tokens.revoke(token.id)

        async def write() -> None:
            while True:
                await queue.submit(type="write")
                await asyncio.sleep(0.05)

        writing = asyncio.create_task(write())
        await to_the_end(lines)
        writing.cancel()


async def test_invalid_stream_cursor_is_refused(api: Running) -> None:
    reply = await api.call("GET", "/api/events?after=99", headers={"accept": "text/event-stream"})
    assert (reply.status, reply.json["where"]) == (422, "after")
    last = {"accept": "text/event-stream", "last-event-id": "nonsense"}
    reply = await api.call("GET", "/api/events", headers=last)
    assert (reply.status, reply.json["where"]) == (422, "after")


async def test_closed_stream_leaves_no_listener(api: Running) -> None:
    async with aiohttp.ClientSession() as http, follow(http, api.url):
        assert api.state.hub.listeners == 1
    await until(lambda: api.state.hub.listeners == 0)
