"""Calls over a bad network: retried until they are answered, with one effect."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from shiftwork import Client, Queue
from shiftwork.model.errors import (
    Forbidden,
    InputError,
    NotFound,
    ShiftworkError,
    StoreClosed,
    StoreUnavailable,
    StoreUnsuitable,
    Unauthorized,
    VersionConflict,
)
from shiftwork.model.history import Event
from tests.client.serving import served
from tests.client.way import Way, answer, bad_way, scripted
from tests.worker.steps import knows, until

ME = b'{"workspace": "default", "scopes": ["read"], "token": null, "now": 1e9}'
GOOD = answer("200 OK", ME)


@pytest.fixture
async def way(server_url: str) -> AsyncIterator[Way]:
    async with bad_way(server_url) as made:
        yield made


@pytest.fixture
async def client(way: Way) -> AsyncIterator[Client]:
    async with Client.open(way.url) as opened:
        yield opened


async def test_calls_do_not_evaluate_annotations(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """`msgspec.structs.fields` compiles every annotation anew: a third of a client's time when each call did it."""
    await client.complete(await held(client))  # once is fine: then it is known
    monkeypatch.setattr(msgspec.structs, "fields", None)
    await client.complete(await held(client))


async def held(shop: Client) -> str:
    """A claim to write under."""
    await shop.submit(type="code", target_agent_id="ada")
    await shop.agents.register(id="ada", max_concurrent_tasks=None)
    return (await shop.claim("ada", start=True))[0].token


Verb = Callable[[Client, str], Awaitable[object]]
# what is done under a claim, and a word for each event that it leaves
ONCE: dict[str, tuple[Verb, list[str]]] = {
    "submit": (lambda c, _: c.submit(type="other"), ["submitted"]),
    "submit_many": (lambda c, _: c.submit_many([{"type": "other"}] * 2), ["submitted"] * 2),
    "submit_dag": (lambda c, _: c.submit_dag({"tasks": [{"type": "other"}]}), ["submitted"]),
    "message": (lambda c, token: c.claims.message(token, "text", "hello"), ["message"]),
    "spawn": (lambda c, token: c.spawn(token, [{"type": "other"}]), ["spawned"]),
    "complete": (lambda c, token: c.complete(token, {"n": 1}), ["completed"]),
    "fail": (lambda c, token: c.fail(token, "network", "gone"), ["failed"]),
    "release": (lambda c, token: c.release(token, "no time"), ["released"]),
    "cancel": (lambda c, token: c.cancel(token.partition(".")[0]), ["cancelled"]),
    "pause": (lambda c, _: c.control.pause("other"), ["queue_paused"]),
    "set_setting": (lambda c, _: c.settings.set("poll_interval_sec", 3), ["settings_changed"]),
}


@pytest.mark.parametrize("name", ONCE)
async def test_verb_whose_answer_was_lost_has_one_effect(shop: Client, client: Client, way: Way, name: str) -> None:
    verb, left = ONCE[name]
    token = await held(shop)
    before = (await shop.events("now")).next
    way.lose = 2
    events = await verb(client, token)
    assert way.lost == 2
    assert [event.verb for event in (await shop.events(before)).events] == left
    if name not in {"complete", "fail"}:  # these are known again by their claim, and say so
        assert getattr(events, "repeated", False) is False


async def test_usage_is_charged_once_after_lost_answers(shop: Client, client: Client, way: Way) -> None:
    token = await held(shop)
    way.lose = 1
    await client.heartbeat(token, usage={"cost_usd": 0.5})
    way.lose = 1
    assert (await client.complete(token, usage={"cost_usd": 0.25})).status == "completed"
    assert (await shop.get(token.partition(".")[0])).cost_usd == 0.75
    way.lose = 1
    with pytest.raises(ShiftworkError):
        await client.fail(token, usage={"cost_usd": 0.25})  # too late, but a fact
    assert (await shop.get(token.partition(".")[0])).cost_usd == 1.0
    assert way.lost == 3


async def test_claim_whose_answer_was_lost_is_answered_again(shop: Client, client: Client, way: Way) -> None:
    await shop.agents.register(id="ada", max_concurrent_tasks=None)
    made = await shop.submit_many([{"type": "code"}] * 3)
    way.lose = 1
    assert [taken.id for taken in await client.claim("ada", 2)] == [task.id for task in made[:2]]
    assert (await shop.get(made[2].id)).status == "ready"


async def test_refused_call_is_refused_again_when_repeated(shop: Client, client: Client, way: Way) -> None:
    task = await shop.get((await shop.submit(type="code")).id)
    way.lose = 1
    with pytest.raises(VersionConflict) as refused:
        await client.tasks.update(task.id, {"priority": 1}, version=7)
    assert refused.value.facts["version"] == task.version


async def test_claim_of_a_cancelled_caller_is_released(server_url: str, shop: Client) -> None:
    async with bad_way(server_url) as way:
        async with Client.open(way.url) as client:
            way.held = asyncio.Event()
            made = await shop.submit(type="code")
            claiming = asyncio.create_task(client.claim("hasty", start=True))
            await way.held.wait()
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming
            way.held = None
        history = (await shop.tasks.history(made.id)).events  # the client was closed, and saw to it first
        assert [event.verb for event in history] == ["submitted", "claimed", "released"]
        assert (await shop.get(made.id)).attempts == 0


async def test_cancelled_waiting_claim_takes_no_task(server_url: str, shop: Client) -> None:
    async with Client.open(server_url) as other:
        claiming = asyncio.create_task(other.claim("hasty", wait=20))
        await until(lambda: knows(shop, "hasty"))
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
    made = await shop.submit(type="code")
    assert [taken.id for taken in await shop.claim("patient", wait=20)] == [made.id]


async def test_waiting_claim_is_answered_when_work_arrives(server_url: str, shop: Client) -> None:
    async with Client.open(server_url) as other:
        claiming = asyncio.create_task(other.claim("ada", wait=20))
        made = await shop.submit(type="code")
        assert [taken.id for taken in await claiming] == [made.id]


async def test_missing_server_is_reported_as_unavailable(unused_tcp_port: int) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        await Client.open(f"http://127.0.0.1:{unused_tcp_port}", patience_sec=0.2)
    assert f"http://127.0.0.1:{unused_tcp_port} cannot be reached" in str(refused.value)


async def test_call_to_a_temporarily_unavailable_server_is_retried() -> None:
    async with scripted(answer("503 Service Unavailable"), answer("502 Bad Gateway"), GOOD) as script:
        async with Client.open(script.url) as client:
            assert client.workspace == "default"
        assert len(script.heard) == 3


async def test_retry_after_is_honoured_by_the_client() -> None:
    """The requested wait exceeds the patience of the caller, so the server is not asked again."""
    away = b'{"code": "store_locked", "detail": "somebody writes", "status": 503, "title": "", "type": ""}'
    async with scripted(answer("503 Service Unavailable", away, "Retry-After: 3600"), GOOD) as script:
        with pytest.raises(ShiftworkError) as refused:
            await Client.open(script.url, patience_sec=5)
        assert (refused.value.code, refused.value.what) == ("store_locked", "somebody writes")
        assert len(script.heard) == 1


async def test_silent_server_is_reported_after_a_timeout() -> None:
    async with scripted(None) as script:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await Client.open(script.url, timeout_sec=0.05, patience_sec=0.1)
        assert len(script.heard) > 1


@pytest.mark.parametrize(
    "stated",
    [
        answer("200 OK", b"<html>hello</html>"),
        answer("200 OK", b'{"hello": 1}'),
        answer("200 OK"),
        answer("404 Not Found", b"no such page"),
        answer("301 Moved", b"", "Location: https://elsewhere.example/"),
    ],
)
async def test_other_http_server_is_reported_as_unsuitable(stated: bytes) -> None:
    async with scripted(stated) as script:
        with pytest.raises(StoreUnsuitable) as refused:
            await Client.open(script.url)
    assert script.url in str(refused.value)
    assert (b"Location" in stated) == ("https://elsewhere.example/" in str(refused.value))


async def test_server_error_names_its_request_id() -> None:
    found = b'{"type": "", "title": "", "status": 500, "code": "internal", "detail": "oh", "request_id": "r-1"}'
    async with scripted(GOOD, answer("500 Oh", found)) as script, await Client.open(script.url) as client:
        with pytest.raises(ShiftworkError, match="internal: oh, request id r-1"):
            await client.status()


async def test_closed_client_refuses_calls(server_url: str) -> None:
    client = await Client.open(server_url)
    await client.close()
    with pytest.raises(StoreClosed):
        await client.status()
    await client.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://host:x",
        "http://host/?a=1",
        "http://h#x",
    ],
)
async def test_invalid_server_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="not the address of a server"):
        await Client.open(url)


async def test_secret_in_the_url_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        await Client.open("http://me:hunter2@127.0.0.1:8080")
    assert "hunter2" not in str(refused.value)


async def test_token_sets_the_workspace_and_is_never_shown(
    store_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with served(store_url, tokens=True) as server:
        async with Queue.open(store_url, workspace="lab") as queue:
            made = await queue.tokens.create("ci", ["submit"])
        with pytest.raises(Unauthorized, match="needs a token"):
            await Client.open(server.url)
        with pytest.raises(Unauthorized, match="the token is unknown"):
            await Client.open(server.url, token=made.secret[:-1] + "x")
        with pytest.raises(NotFound):
            await Client.open(server.url, token=made.secret, workspace="default")
        monkeypatch.setenv("SHIFTWORK_TOKEN", made.secret)
        async with Client.open(server.url) as client:
            task = await client.get((await client.submit(type="code")).id)
            assert (client.workspace, task.workspace_id) == ("lab", "lab")
            with pytest.raises(Forbidden) as refused:
                await client.claim("ada")
            assert refused.value.facts["needs"] == "work"
            assert repr(client) == f"Client({server.url!r}, workspace='lab')"
    assert made.secret not in caplog.text


async def test_workspace_and_caller_are_sent_with_each_call(shop: Client) -> None:
    lab = shop.in_workspace("lab").as_caller("human:Zoë", "request-7")
    made = await lab.submit(type="code")
    assert (lab.workspace, [task.id for task in (await lab.tasks.list()).tasks]) == ("lab", [made.id])
    assert (await shop.tasks.list()).tasks == []
    (event,) = (await lab.tasks.history(made.id)).events
    assert (event.actor, event.request_id) == ("human:Zo%C3%AB", "request-7")
    with pytest.raises(NotFound):
        await shop.get(made.id)
    for wrong in ("", "a\nb", "a\0b"):
        with pytest.raises(InputError):
            shop.as_caller("ada", wrong)


NAMES = ["a/b", "a b", "ä?&=#%", "100%", "..", "a.1"]


@pytest.mark.parametrize("name", NAMES)
async def test_names_reach_the_server_unchanged(shop: Client, name: str) -> None:
    made = await shop.submit(type=name, id=name, tags=[name], issue_id=name, target_agent_id=name)
    assert (await shop.get(name)).id == made.id
    assert [task.id for task in (await shop.tasks.list(type=name, tag=name, issue=name)).tasks] == [made.id]
    assert (await shop.tasks.count_by_tag(name))["total"] == 1
    await shop.agents.register(id=name)
    assert (await shop.agents.get(name)).id == name
    (taken,) = await shop.claim(name, start=True)
    assert (await shop.start(f"{name}.{taken.fence}")).repeated
    await shop.complete(f"{name}.{taken.fence}", name)
    assert (await shop.result(name)).data == name
    assert (await shop.tasks.rerun_issue(name)).status == "ready"


async def test_large_batches_are_sent_in_parts(shop: Client) -> None:
    made = await shop.submit_many([{"type": "code"}] * 1500)
    ids = [task.id for task in made]
    assert [task.id for task in await shop.batch.get(ids)] == ids
    assert {outcome.status for outcome in await shop.batch.cancel(ids)} == {"cancelled"}


async def test_server_clock_is_used_by_the_client(store_url: str) -> None:
    with served(store_url, test_clock=True) as server:
        async with Client.open(server.url) as before:
            assert abs(before.now() - server.state.queue.now()) < 60
        assert server.state.clock is not None
        server.state.clock.advance(86_400)
        async with Client.open(server.url) as after:
            assert after.now() - before.now() > 86_000


async def test_events_are_followed_as_they_arrive(shop: Client, way: Way, client: Client) -> None:
    seen: list[Event] = []

    async def follow() -> None:
        async for event in client.follow():
            seen.append(event)
            if len(seen) == 3:
                return

    following = asyncio.create_task(follow())
    await shop.submit(type="code")
    await until(lambda: len(seen) == 1)
    way.lose = 1  # the page that waits for what comes next
    await shop.submit_many([{"type": "code"}] * 2)
    await following
    assert [event.verb for event in seen] == ["submitted"] * 3
    assert len({event.task_id for event in seen}) == 3


@pytest.mark.parametrize("value", [float("nan"), "a\0b", "\ud800", object()])
async def test_payload_without_json_form_is_refused_by_name(shop: Client, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        await shop.submit(type="code", payload={"value": value})
    assert (refused.value.where or "").startswith("task")
