"""Who gets in where: every door and every role, other workspaces, other tokens' claims, and pages of other sites."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError
from shiftwork.core.scopes import MEANING
from shiftwork.server.routes import DOORS
from shiftwork.server.serve import Options, check_options
from shiftwork.wire import access
from shiftwork.wire.access import is_local
from tests.conformance.steps import bury, everything
from tests.server import raw
from tests.server.doors import BY_NAME, CALLS, Call, named, waiting
from tests.server.running import Reply, Running

OF_WORKSPACE = ("read", "submit", "work", "operate", "admin")
SCOPES = (*OF_WORKSPACE, "server")
OPEN = ("/healthz", "/readyz", "/openapi.json")
FREE = {"tag_counts", "runtime_heartbeat", "orphans", "runtime_gone", "heartbeat", "put_known_artifact"}
FREE |= {"reset_breaker", "trip_breaker", "cool_down", "lift_cooldown", "set_limit", "remove_limit", "remove_sink"}
FREE |= {"save_trigger", "remove_trigger", "set_quota"}
"""Doors whose name in the path need not exist: a runtime is known by its first call, a tag by its first task, an
artifact by its content, and the heartbeat of a task that is not there is answered with `lost`. Types and keys are words
that every workspace may use."""


class Role(NamedTuple):
    """Whoever knocks, and the scopes of the doors that open to them."""

    header: str | None
    opens: frozenset[str]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def token(queue: Queue, *scopes: str) -> dict[str, str]:
    """The header of a new token."""
    return bearer((await queue.create_token("-".join(scopes), list(scopes))).secret)


@pytest.fixture
async def roles(guarded: Running) -> dict[str, Role]:
    queue, clock = guarded.house.queue, guarded.house.clock
    assert clock is not None
    expired = await queue.create_token("expired", ["admin"], expires_at=queue.now() + 10)
    clock.advance(11)
    revoked = await queue.create_token("revoked", ["admin"])
    await queue.revoke_token(revoked.id)
    live = await queue.create_token("live", ["admin"])
    shut = {
        "nobody": None,
        "empty": "Bearer",
        "spaces": "Bearer  ",
        "other kind": "Basic YWRhOnNlY3JldA==",
        "no kind": live.secret,
        "garbage": "Bearer \xff\xfe",
        "long": f"Bearer {'x' * 10_000}",
        "unknown": f"Bearer sw_{'0' * 12}_{'x' * 43}",
        "wrong secret": f"Bearer {live.secret[:-1]}{'A' if live.secret[-1] != 'A' else 'B'}",
        "expired": f"Bearer {expired.secret}",
        "revoked": f"Bearer {revoked.secret}",
    }
    found = {name: Role(header, frozenset()) for name, header in shut.items()}
    for scope in SCOPES:
        header = (await token(queue, scope))["Authorization"]
        found[scope] = Role(header, frozenset(OF_WORKSPACE if scope == "admin" else {scope, "read"}))
    return found


def knock(role: Role) -> dict[str, str]:
    return {} if role.header is None else {"Authorization": role.header}


async def test_every_door_opens_to_its_scope_alone(guarded: Running, roles: dict[str, Role]) -> None:
    for name, role in roles.items():
        for door in DOORS:
            path = re.sub(r"{\w+}", "7", door.path)
            reply = await guarded.call(door.method, path, {} if door.changes else None, headers=knock(role))
            where = f"{name} at {door.method} {door.path}: {reply}"
            if door.name == "receive_hook":  # a signature opens it, no token
                assert (reply.status, reply.code) == (403, "hook_refused"), where
            elif door.scope is None or door.scope in role.opens:
                assert reply.status < 500, where
                assert reply.status not in {401, 403}, where
            elif role.opens:
                assert (reply.status, reply.code) == (403, "forbidden"), where
                assert reply.json["facts"] == {"needs": door.scope, "has": [name]}, where
            else:
                assert (reply.status, reply.code) == (401, "unauthorized"), where
                assert reply.headers["www-authenticate"] == "Bearer", where


async def test_some_paths_are_open_to_everybody(guarded: Running, roles: dict[str, Role]) -> None:
    for role in roles.values():
        for path in OPEN:
            assert (await guarded.call("GET", path, headers=knock(role))).status == 200


async def first_message(api: Running, path: str, **options: Any) -> Any:
    """What the server says on a new WebSocket: an error, or the first event."""
    async with api.http.ws_connect(api.url + path, **options) as socket:
        return await socket.receive_json(timeout=30)


async def test_the_websocket_opens_to_whoever_may_read(guarded: Running, roles: dict[str, Role]) -> None:
    await waiting(guarded.house.queue)
    for name, role in roles.items():
        if name == "long":  # no WebSocket comes of it
            continue
        told = await first_message(guarded, "/ws?after=0", headers=knock(role))
        if "read" in role.opens:
            assert told["event"] != "error", name
        else:
            assert (told["event"], told["code"]) == ("error", "unauthorized"), name


async def test_a_browser_offers_its_token_as_a_subprotocol(guarded: Running) -> None:
    await waiting(guarded.house.queue)
    secret = (await guarded.house.queue.create_token("tab", ["read"])).secret
    told = await first_message(guarded, "/ws?after=0", protocols=["shiftwork", f"bearer.{secret}"])
    assert told["event"] != "error"


async def test_a_token_has_the_scopes_it_was_given_together(guarded: Running) -> None:
    both = await token(guarded.house.queue, "submit", "work")
    made = await guarded.post("/api/tasks", {"type": "noop"}, headers=both)
    claimed = await guarded.post("/api/tasks/claim", {"agent_id": "ada"}, headers=both)
    assert claimed["assignments"][0]["task"]["id"] == made["id"]
    assert (await guarded.call("POST", "/api/queue/pause", {}, headers=both)).status == 403


async def test_a_revoked_token_opens_nothing_once_it_is_looked_at_again(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FRESH_SEC", 0.0)
    made = await guarded.house.queue.create_token("ci", ["read"])
    assert (await guarded.call("GET", "/api/me", headers=bearer(made.secret))).status == 200
    await guarded.house.queue.revoke_token(made.id)
    assert (await guarded.call("GET", "/api/me", headers=bearer(made.secret))).status == 401


async def test_what_is_no_token_is_not_remembered(guarded: Running) -> None:
    for number in range(50):
        await guarded.call("GET", "/api/me", headers=bearer(f"{number}" * 1000))
    assert not guarded.house.gatekeeper._known


# -- other workspaces --------------------------------------------------------------------------------------------


async def all_rows(queue: Queue) -> set[tuple[str, str]]:
    return {(table, row) for table, rows in (await everything(queue)).items() for row in rows}


@pytest.fixture
async def ours(guarded: Running) -> dict[str, str]:
    return await token(guarded.house.queue.in_workspace("ours"), "admin", "server")


def test_every_door_with_a_name_in_its_path_has_a_call() -> None:
    assert {door.name for door in named()} <= CALLS.keys()


async def test_what_is_in_another_workspace_does_not_exist(guarded: Running) -> None:
    for name, arrange in CALLS.items():
        ours = await token(guarded.house.queue.in_workspace(f"ours-{name}"), "admin", "server")
        door, call = BY_NAME[name], await arrange(guarded.house.queue.in_workspace(f"theirs-{name}"))
        before = await all_rows(guarded.house.queue)
        reply = await guarded.call(door.method, call.path(door), call.body, headers=ours)
        after = await all_rows(guarded.house.queue)
        if name != "move_clock":  # the one clock of the server
            assert before <= after, (name, before - after)
            assert "theirs" not in str(after - before), name
        assert "theirs" not in reply.body.decode(), (name, reply)
        if "{" in door.path and name not in FREE:
            assert (reply.status, reply.code) == (404, "not_found"), (name, reply)
        else:
            assert reply.status in {200, 201, 204, 404}, (name, reply)


async def test_what_was_removed_in_another_workspace_is_not_told_either(guarded: Running, ours: dict[str, str]) -> None:
    theirs = guarded.house.queue.in_workspace("theirs")
    await theirs.set_setting("purge.mode", "delete")
    task_id = await bury(theirs)
    await theirs.review(task_id, "abandon", note="theirs alone")
    await theirs.purge(status=["dead_lettered"])
    for door in named():
        if door.method == "GET" and "{task_id}" in door.path:
            reply = await guarded.call("GET", door.path.format(task_id=task_id), headers=ours)
            assert (reply.status, reply.code) == (404, "not_found"), (door.name, reply)


async def test_no_token_may_name_another_workspace(guarded: Running, ours: dict[str, str]) -> None:
    for name, arrange in CALLS.items():
        workspace = f"theirs-{name}"
        door, call = BY_NAME[name], await arrange(guarded.house.queue.in_workspace(workspace))
        before = await everything(guarded.house.queue)
        path = call.path(door, workspace=workspace)
        reply = await guarded.call(door.method, path, call.body, headers=ours)
        assert await everything(guarded.house.queue) == before, name
        assert (reply.status, reply.code, reply.json["where"]) == (404, "not_found", "workspace"), (name, reply)


async def test_a_token_may_name_its_own_workspace(guarded: Running, ours: dict[str, str]) -> None:
    assert (await guarded.get("/api/me?workspace=ours", headers=ours))["workspace"] == "ours"


async def test_lists_show_one_workspace(guarded: Running, ours: dict[str, str]) -> None:
    for name, arrange in CALLS.items():
        await arrange(guarded.house.queue.in_workspace(f"theirs-{name}"))
    for door in DOORS:
        if door.method == "GET" and "{" not in door.path and door.scope is not None and door.name != "claims_made":
            reply = await guarded.call("GET", door.path, headers=ours)
            assert reply.status == 200, (door.name, reply)
            assert "theirs" not in reply.body.decode(), (door.name, reply)


async def test_a_submission_may_not_name_another_workspace_in_a_documents_words(
    guarded: Running, ours: dict[str, str]
) -> None:
    body = {"workspace_id": "theirs", "agent_id": "ada", "issue_id": "i", "trigger_type": "comment"}
    reply = await guarded.call("POST", "/api/tasks?view=aegis", body, headers=ours)
    assert (reply.status, reply.code, reply.json["where"]) == (404, "not_found", "workspace_id")


# -- other tokens' claims ----------------------------------------------------------------------------------------

UNDER_A_CLAIM = ["start", "message", "pin_session", "complete", "fail", "release", "spawn", "wait", "progress"]
IN_A_BATCH = ["start_many", "complete_many", "fail_many", "release_many"]


async def claim_with(api: Running, header: dict[str, str], *, start: bool) -> Any:
    await waiting(api.house.queue)
    told = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": start}, headers=header)
    return told["assignments"][0]


async def call_under(api: Running, name: str, claim: Any) -> Call:
    """The door's arranged call, but under this claim."""
    arranged = await CALLS[name](api.house.queue.in_workspace("elsewhere"))
    body = {**arranged.body, "token": claim["token"]}
    if name == "wait":
        body["tasks"] = [await waiting(api.house.queue)]
    return Call({"task_id": claim["task"]["id"]}, body)


async def write(api: Running, name: str, call: Call, header: dict[str, str]) -> Reply:
    door = BY_NAME[name]
    return await api.call(door.method, call.path(door), call.body, headers=header)


@pytest.mark.parametrize("name", UNDER_A_CLAIM)
async def test_a_worker_writes_only_under_claims_of_its_own_token(guarded: Running, name: str) -> None:
    mine, other, operator = [await token(guarded.house.queue, scope) for scope in ("work", "work", "operate")]
    claim = await claim_with(guarded, mine, start=name != "start")
    call = await call_under(guarded, name, claim)
    before = await everything(guarded.house.queue)
    refused = await write(guarded, name, call, other)
    assert await everything(guarded.house.queue) == before
    assert (refused.status, refused.code) == (403, "not_your_claim")
    assert (await write(guarded, name, call, operator)).status == 403, "operate alone does not open the door"
    both = await token(guarded.house.queue, "work", "operate")
    assert (await write(guarded, name, call, both)).status == BY_NAME[name].status


@pytest.mark.parametrize("name", UNDER_A_CLAIM)
async def test_the_token_of_the_claim_may_write(guarded: Running, name: str) -> None:
    mine = await token(guarded.house.queue, "work")
    claim = await claim_with(guarded, mine, start=name != "start")
    reply = await write(guarded, name, await call_under(guarded, name, claim), mine)
    assert reply.status == BY_NAME[name].status, reply


def test_the_page_about_access_says_what_each_scope_opens() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/access.md").read_text()
    for scope, meaning in MEANING.items():
        assert f"| `{scope}` | {meaning} |" in page
    assert "with `work`, write under any claim" in MEANING["operate"]


async def test_a_heartbeat_under_anothers_claim_is_lost(guarded: Running) -> None:
    mine, other = [await token(guarded.house.queue, "work") for _ in range(2)]
    claim = await claim_with(guarded, mine, start=True)
    path = f"/api/tasks/{claim['task']['id']}/heartbeat"
    before = await guarded.house.queue.get(claim["task"]["id"])
    told = await guarded.post(path, {"token": claim["token"]}, headers=other)
    assert told["action"] == "lost"
    assert (await guarded.house.queue.get(claim["task"]["id"])).claim == before.claim
    assert (await guarded.post(path, {"token": claim["token"]}, headers=mine))["action"] == "continue"


@pytest.mark.parametrize("name", IN_A_BATCH)
async def test_in_a_batch_only_anothers_claim_is_refused(guarded: Running, name: str) -> None:
    mine, other = [await token(guarded.house.queue, "work") for _ in range(2)]
    await guarded.house.queue.register_agent(id="ada", max_concurrent_tasks=2)
    claims = [await claim_with(guarded, header, start=name != "start_many") for header in (mine, other)]
    arranged = await CALLS[name](guarded.house.queue.in_workspace("elsewhere"))
    ((field, (item,)),) = arranged.body.items()
    tokens = [claim["token"] for claim in claims]
    items = tokens if isinstance(item, str) else [{**item, "token": each} for each in tokens]
    told = (await write(guarded, name, Call({}, {field: items}), mine)).json["outcomes"]
    assert [each.get("error", {}).get("code") for each in told] == [None, "not_your_claim"]


@pytest.mark.parametrize("view", ["aegis", "loki"])
async def test_a_write_that_names_no_claim_means_only_ones_own(guarded: Running, view: str) -> None:
    mine, other = [await token(guarded.house.queue, "work") for _ in range(2)]
    claim = await claim_with(guarded, mine, start=True)
    path = f"/api/tasks/{claim['task']['id']}/complete?view={view}"
    refused = await guarded.call("POST", path, {}, headers=other)
    assert (refused.status, refused.code) == (403, "not_your_claim")
    assert (await guarded.call("POST", path, {}, headers=mine)).status == 200


async def test_claims_are_told_again_only_to_the_token_that_made_them(guarded: Running) -> None:
    mine, other = [await token(guarded.house.queue, "work") for _ in range(2)]
    await waiting(guarded.house.queue)
    await guarded.post("/api/tasks/claim", {"agent_id": "ada"}, headers={**mine, "Idempotency-Key": "k"})
    path = "/api/claims?who=ada&request=k"
    assert len((await guarded.get(path, headers=mine))["tasks"]) == 1
    assert (await guarded.get(path, headers=other))["tasks"] == []


# -- secrets -----------------------------------------------------------------------------------------------------


async def test_a_secret_is_told_once_and_stands_nowhere(guarded: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    admin = await token(guarded.house.queue, "admin")
    keyed = {**admin, "Idempotency-Key": "k"}
    made = await guarded.post("/api/tokens", {"name": "ci", "scopes": ["work"]}, headers=keyed)
    secret = made["secret"]
    replies = [
        await guarded.call("POST", "/api/tokens", {"name": "ci", "scopes": ["work"]}, headers=keyed),
        await guarded.call("GET", "/api/tokens", headers=admin),
        await guarded.call("GET", "/api/events", headers=admin),
        await guarded.call("POST", "/api/tokens", {"name": "ci", "scopes": ["work"]}, headers=bearer(secret)),
        await guarded.call("POST", "/api/tasks/claim", {"agent_id": 7}, headers=bearer(secret)),
        await guarded.call("POST", "/api/tasks/claim", {"agent_id": "ada"}, headers=bearer(secret)),
        await guarded.call("GET", "/api/me", headers=bearer(secret)),
        await guarded.call("DELETE", f"/api/tokens/{made['id']}", headers=admin),
        await guarded.call("GET", "/nowhere", headers=bearer(secret)),
    ]
    rest = secret.split("_", 2)[2]
    assert not [reply for reply in replies if rest in reply.body.decode() or rest in str(reply.headers)]
    assert rest not in str(await everything(guarded.house.queue))
    assert rest not in caplog.text + str([record.__dict__ for record in caplog.records])


async def test_a_server_error_tells_no_secret(
    guarded: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_self: Any) -> None:
        raise RuntimeError("it broke")

    admin = await token(guarded.house.queue, "admin")
    monkeypatch.setattr(Queue, "agents", broken)
    reply = await guarded.call("GET", "/api/agents", headers=admin)
    assert (reply.status, reply.code) == (500, "internal")
    assert "it broke" not in reply.body.decode()
    assert reply.json["request_id"] in [getattr(record, "request_id", None) for record in caplog.records]
    assert admin["Authorization"].split("_", 2)[2] not in caplog.text


# -- pages of other sites ----------------------------------------------------------------------------------------

OURS = ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:80", "app.localhost"]
OTHERS = [
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:80", "xlocalhost"),
    *("localhost@evil.example", "8.8.8.8", "10.0.0.1", "[::2]", "[::1", "2130706433", "", "localhost evil.example"),
]


@pytest.fixture
async def port(api: Running) -> AsyncIterator[raw.Line]:
    async with raw.line(api.url) as line:
        yield line


@pytest.mark.parametrize("host", OURS)
async def test_this_machine_is_served_by_its_own_names(port: raw.Line, host: str) -> None:
    port.send(raw.request("GET", "/api/me", host=host))
    assert (await port.answer()).status == 200


@pytest.mark.parametrize("host", OTHERS)
async def test_a_name_that_somebody_else_may_own_is_refused(port: raw.Line, host: str) -> None:
    """A page of evil.example may let its name point here: the browser then takes us for the same site."""
    port.send(raw.request("GET", "/api/me", host=host))
    told = await port.answer()
    assert (told.status, told.json["code"], told.json["where"]) == (403, "forbidden", "Host")


async def test_a_call_without_a_host_is_refused(port: raw.Line) -> None:
    port.send(b"GET /api/me HTTP/1.1\r\n\r\n")
    assert (await port.answer()).status == 403


FOREIGN = ["http://evil.example", "https://localhost.evil.example", "null", "file://", "", "http://[", "http://]["]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_pages_of_other_sites_are_refused(api: Running, origin: str) -> None:
    for method, path in (("POST", "/api/tasks"), ("GET", "/api/tasks")):
        body = {"type": "noop"} if method == "POST" else None
        reply = await api.call(method, path, body, headers={"Origin": origin})
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Origin")
    told = await first_message(api, "/ws?after=0", headers={"Origin": origin})
    assert (told["event"], told["code"]) == ("error", "forbidden")
    assert (await api.get("/api/tasks"))["tasks"] == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_pages_of_this_server_are_served(api: Running, scheme: str) -> None:
    """Also through a proxy on this machine that adds TLS."""
    page = {"Origin": api.url.replace("http", scheme), "Sec-Fetch-Site": "same-origin"}
    await api.post("/api/tasks", {"type": "noop"}, headers={**page, "Content-Type": "application/json; charset=utf-8"})
    await api.post("/api/queue/pause", headers={**page, "Content-Type": "application/json"})
    assert (await first_message(api, "/ws?after=0", headers=page))["event"] != "error"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost", "localhost"),
        ("http://LOCALHOST:80", "localhost"),
        ("https://localhost", "localhost:443"),
        ("http://[::1]:8080", "[::1]:8080"),
    ],
)
async def test_an_origin_is_ours_however_its_port_is_written(api: Running, origin: str, host: str) -> None:
    headers = {"Origin": origin, "Host": host, "Content-Type": "application/json"}
    await api.post("/api/tasks", {"type": "noop"}, headers=headers)


NEIGHBOURS = [
    "http://localhost:3000",
    "http://other.localhost",
    "http://127.0.0.1:1",
    "http://[::1]",
    "https://localhost",
]


@pytest.mark.parametrize("origin", NEIGHBOURS)
async def test_pages_of_other_servers_on_this_machine_are_refused(api: Running, origin: str) -> None:
    """A development server that an agent started is such a page."""
    headers = {"Origin": origin, "Content-Type": "application/json"}
    reply = await api.call("POST", "/api/tasks", {"type": "noop"}, headers=headers)
    assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Origin")
    live = await api.call("GET", "/api/events", headers={"Origin": origin, "Accept": "text/event-stream"})
    assert (live.status, live.code) == (403, "forbidden")
    told = await first_message(api, "/ws?after=0", headers={"Origin": origin})
    assert (told["event"], told["code"]) == ("error", "forbidden")
    assert (await api.get("/api/tasks"))["tasks"] == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_browser_that_names_another_site_is_refused(api: Running, site: str) -> None:
    """Some calls of a page carry no Origin, as a picture does; every browser of today names the site."""
    page = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    for method, path in (("POST", "/api/tasks"), ("GET", "/api/events?wait_sec=25"), ("GET", "/api/tasks")):
        reply = await api.call(method, path, {"type": "noop"} if method == "POST" else None, headers=page)
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Sec-Fetch-Site")
    told = await first_message(api, "/ws?after=0", headers={"Sec-Fetch-Site": site})
    assert (told["event"], told["code"]) == ("error", "forbidden")
    form = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert (await api.call("POST", "/api/tasks", {"type": "noop"}, headers=form)).status == 403
    assert (await api.call("GET", "/api/tasks", headers=form)).json["tasks"] == [], "a link may be opened"


async def test_a_page_sends_json_by_its_name(api: Running) -> None:
    """A form can send text/plain to another site without being asked; a page of ours has no need to."""
    page = {"Origin": api.url}
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = await api.call("POST", "/api/tasks", {"type": "noop"}, headers={**page, "Content-Type": kind})
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Content-Type")
    await api.post("/api/tasks", {"type": "noop"}, headers={"Content-Type": "application/x-www-form-urlencoded"})


async def test_a_foreign_host_gets_no_websocket(api: Running) -> None:
    told = await first_message(api, "/ws?after=0", headers={"Host": "evil.example"})
    assert (told["event"], told["code"]) == ("error", "forbidden")


async def test_no_page_may_read_our_answers(api: Running) -> None:
    """No header lets a browser hand an answer to a page of another site, nor ask whether it may call."""
    answer = await api.call("GET", "/openapi.json", headers={"Origin": "http://evil.example"})
    asked = await api.call(
        "OPTIONS",
        "/api/tasks",
        headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert asked.status == 405
    assert not [
        name for reply in (answer, asked) for name in reply.headers if name.lower().startswith("access-control")
    ]


async def test_with_a_token_any_host_is_served(guarded: Running) -> None:
    """Behind a proxy it has whatever name that has; the secret is what counts."""
    header = await token(guarded.house.queue, "read")
    reply = await guarded.call(
        "GET", "/api/me", headers={**header, "Host": "queue.example", "Origin": "https://a.example"}
    )
    assert reply.status == 200


async def test_an_unknown_token_is_refused_where_none_is_needed(api: Running) -> None:
    assert (await api.call("GET", "/api/me", headers=bearer("sw_nobody"))).status == 401


def test_a_name_is_local_or_not_and_never_an_error() -> None:
    assert all(is_local(host) for host in OURS)
    assert not any(is_local(host) for host in [*OTHERS, "[", "]", "::", "a]b[", "\x00", "//"])


# -- what is offered to the world --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "queue.example", ""])  # noqa: S104  # refused here
def test_beyond_this_machine_tokens_are_needed(host: str) -> None:
    with pytest.raises(InputError, match="--tokens"):
        check_options(Options(store="sqlite:///q.db", host=host))
    check_options(Options(store="sqlite:///q.db", host=host, tokens=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  # refused here
def test_beyond_this_machine_nobody_moves_the_clock(host: str) -> None:
    with pytest.raises(InputError, match="--test-clock"):
        check_options(Options(store="sqlite:///q.db", host=host, tokens=True, test_clock=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str) -> None:
    check_options(Options(store="sqlite:///q.db", host=host, test_clock=True))


# -- other methods -----------------------------------------------------------------------------------------------


async def test_a_head_tells_what_a_get_would(api: Running) -> None:
    task_id = await waiting(api.house.queue)
    for path in ("/healthz", "/api/tasks", f"/api/tasks/{task_id}", "/api/tasks/nobody"):
        got, asked = await api.call("GET", path), await api.call("HEAD", path)
        assert (asked.status, asked.body) == (got.status, b"")
        assert asked.headers["content-type"] == got.headers["content-type"]
    assert (await api.call("HEAD", "/api/tasks/claim")).status == 404, "there is no task of that name"
    live = await api.call("HEAD", "/api/events", headers={"Accept": "text/event-stream"})
    assert (live.status, live.body) == (200, b""), "and it ends"


async def test_a_head_needs_the_same_scope(guarded: Running) -> None:
    assert (await guarded.call("HEAD", "/api/tasks")).status == 401
    assert (await guarded.call("HEAD", "/api/tokens", headers=await token(guarded.house.queue, "read"))).status == 403
