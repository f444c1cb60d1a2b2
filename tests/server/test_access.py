"""Access control: every route and role, other workspaces, claims of other tokens, and pages of other sites."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shiftwork import Queue
from shiftwork.access import authenticator
from shiftwork.access.authenticator import is_local
from shiftwork.access.model import MEANING
from shiftwork.agents.api import Agents
from shiftwork.model.errors import InputError
from shiftwork.operation.declare import operation_of
from shiftwork.server.options import Options, check_options
from shiftwork.server.routes import ENDPOINTS
from tests.conformance.steps import dead_letter, everything
from tests.server import raw
from tests.server.endpoints import BY_NAME, CALLS, Call, named, waiting
from tests.server.running import Reply, Running

OF_WORKSPACE = ("read", "submit", "work", "operate", "admin")
SCOPES = (*OF_WORKSPACE, "server")
OPEN = ("/healthz", "/readyz", "/openapi.json")
FREE = {
    "tasks_count_by_tag",
    "runtimes_heartbeat",
    "runtimes_recover",
    "runtimes_report_gone",
    "heartbeat",
    "artifacts_put_known",
}
FREE |= {
    "breakers_reset",
    "breakers_trip",
    "cooldowns_set",
    "cooldowns_lift",
    "limits_set",
    "limits_remove",
    "sinks_remove",
}
FREE |= {"accounts_set", "accounts_remove", "accounts_renew"}
FREE |= {"triggers_save", "triggers_remove", "types_save", "types_remove", "quotas_set"}
"""Endpoints whose name in the path need not exist: a runtime is known by its first call, a tag by its first task, an
artifact by its content, and the heartbeat of a task that is not there is answered with `lost`. Types and keys are words
that every workspace may use."""


class Role(NamedTuple):
    """A kind of caller, and the scopes of the endpoints that it may use."""

    header: str | None
    opens: frozenset[str]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def token(queue: Queue, *scopes: str) -> dict[str, str]:
    """The header of a new token."""
    return bearer((await queue.tokens.create("-".join(scopes), list(scopes))).secret)


@pytest.fixture
async def roles(guarded: Running) -> dict[str, Role]:
    queue, clock = guarded.state.queue, guarded.state.clock
    assert clock is not None
    expired = await queue.tokens.create("expired", ["admin"], expires_at=queue.now() + 10)
    clock.advance(11)
    revoked = await queue.tokens.create("revoked", ["admin"])
    await queue.tokens.revoke(revoked.id)
    live = await queue.tokens.create("live", ["admin"])
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


async def test_every_route_requires_its_scope(guarded: Running, roles: dict[str, Role]) -> None:
    for name, role in roles.items():
        for endpoint in ENDPOINTS:
            path = re.sub(r"{\w+}", "7", endpoint.path)
            reply = await guarded.call(endpoint.method, path, {} if endpoint.changes else None, headers=knock(role))
            where = f"{name} at {endpoint.method} {endpoint.path}: {reply}"
            if endpoint.name in {"hooks_receive", "slack_press"}:  # a signature opens it, no token
                assert (reply.status, reply.code) == (403, "hook_refused"), where
            elif endpoint.scope is None or endpoint.scope in role.opens:
                assert reply.status < 500, where
                assert reply.status not in {401, 403}, where
            elif role.opens:
                assert (reply.status, reply.code) == (403, "forbidden"), where
                assert reply.json["facts"] == {"needs": endpoint.scope, "has": [name]}, where
            else:
                assert (reply.status, reply.code) == (401, "unauthorized"), where
                assert reply.headers["www-authenticate"] == "Bearer", where


async def test_public_paths_are_open_to_every_caller(guarded: Running, roles: dict[str, Role]) -> None:
    for role in roles.values():
        for path in OPEN:
            assert (await guarded.call("GET", path, headers=knock(role))).status == 200


async def first_message(api: Running, path: str, **options: Any) -> Any:
    """What the server says on a new WebSocket: an error, or the first event."""
    async with api.http.ws_connect(api.url + path, **options) as socket:
        return await socket.receive_json(timeout=30)


async def test_websocket_requires_the_read_scope(guarded: Running, roles: dict[str, Role]) -> None:
    await waiting(guarded.state.queue)
    for name, role in roles.items():
        if name == "long":  # no WebSocket comes of it
            continue
        found = await first_message(guarded, "/ws?after=0", headers=knock(role))
        if "read" in role.opens:
            assert found["event"] != "error", name
        else:
            assert (found["event"], found["code"]) == ("error", "unauthorized"), name


async def test_browser_can_send_its_token_as_subprotocol(guarded: Running) -> None:
    await waiting(guarded.state.queue)
    secret = (await guarded.state.queue.tokens.create("tab", ["read"])).secret
    found = await first_message(guarded, "/ws?after=0", protocols=["shiftwork", f"bearer.{secret}"])
    assert found["event"] != "error"


async def test_token_has_all_scopes_it_was_given(guarded: Running) -> None:
    both = await token(guarded.state.queue, "submit", "work")
    made = await guarded.post("/api/tasks", {"type": "noop"}, headers=both)
    claimed = await guarded.post("/api/tasks/claim", {"agent_id": "ada"}, headers=both)
    assert claimed["assignments"][0]["task"]["id"] == made["id"]
    assert (await guarded.call("POST", "/api/queue/pause", {}, headers=both)).status == 403


async def test_revoked_token_is_refused_when_checked_again(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "FRESH_SEC", 0.0)
    made = await guarded.state.queue.tokens.create("ci", ["read"])
    assert (await guarded.call("GET", "/api/me", headers=bearer(made.secret))).status == 200
    await guarded.state.queue.tokens.revoke(made.id)
    assert (await guarded.call("GET", "/api/me", headers=bearer(made.secret))).status == 401


async def test_invalid_tokens_are_not_cached(guarded: Running) -> None:
    for number in range(50):
        await guarded.call("GET", "/api/me", headers=bearer(f"{number}" * 1000))
    assert not guarded.state.authenticator._known


async def all_rows(queue: Queue) -> set[tuple[str, str]]:
    return {(table, row) for table, rows in (await everything(queue)).items() for row in rows}


@pytest.fixture
async def ours(guarded: Running) -> dict[str, str]:
    return await token(guarded.state.queue.in_workspace("ours"), "admin", "server")


def test_every_route_with_a_path_parameter_is_covered() -> None:
    assert {endpoint.name for endpoint in named()} <= CALLS.keys()


async def test_objects_of_another_workspace_are_not_found(guarded: Running) -> None:
    for name, arrange in CALLS.items():
        ours = await token(guarded.state.queue.in_workspace(f"ours-{name}"), "admin", "server")
        endpoint, call = BY_NAME[name], await arrange(guarded.state.queue.in_workspace(f"theirs-{name}"))
        before = await all_rows(guarded.state.queue)
        reply = await guarded.call(endpoint.method, call.path(endpoint), call.body, headers=ours)
        after = await all_rows(guarded.state.queue)
        if name != "move_clock":  # the one clock of the server
            lost = {(table, row) for table, row in before - after if f"ours-{name}" not in row}
            assert lost == set(), name  # but for our own workspace, whose types were counted
            assert "theirs" not in str(after - before), name
        assert "theirs" not in reply.body.decode(), (name, reply)
        if "{" in endpoint.path and name not in FREE:
            assert (reply.status, reply.code) == (404, "not_found"), (name, reply)
        else:
            assert reply.status in {200, 201, 204, 404}, (name, reply)


async def test_removed_objects_of_another_workspace_are_not_revealed(guarded: Running, ours: dict[str, str]) -> None:
    theirs = guarded.state.queue.in_workspace("theirs")
    await theirs.settings.set("purge.mode", "delete")
    task_id = await dead_letter(theirs)
    await theirs.dead_letters.review(task_id, "abandon", note="theirs alone")
    await theirs.control.purge(status=["dead_lettered"])
    for endpoint in named():
        if endpoint.method == "GET" and "{task_id}" in endpoint.path:
            reply = await guarded.call("GET", endpoint.path.format(task_id=task_id), headers=ours)
            assert (reply.status, reply.code) == (404, "not_found"), (endpoint.name, reply)


async def test_token_cannot_name_another_workspace(guarded: Running, ours: dict[str, str]) -> None:
    for name, arrange in CALLS.items():
        workspace = f"theirs-{name}"
        endpoint, call = BY_NAME[name], await arrange(guarded.state.queue.in_workspace(workspace))
        before = await everything(guarded.state.queue)
        path = call.path(endpoint, workspace=workspace)
        reply = await guarded.call(endpoint.method, path, call.body, headers=ours)
        assert await everything(guarded.state.queue) == before, name
        assert (reply.status, reply.code, reply.json["where"]) == (404, "not_found", "workspace"), (name, reply)


async def test_token_can_name_its_own_workspace(guarded: Running, ours: dict[str, str]) -> None:
    assert (await guarded.get("/api/me?workspace=ours", headers=ours))["workspace"] == "ours"


async def test_lists_show_only_one_workspace(guarded: Running, ours: dict[str, str]) -> None:
    for name, arrange in CALLS.items():
        await arrange(guarded.state.queue.in_workspace(f"theirs-{name}"))
    for endpoint in ENDPOINTS:
        if (
            endpoint.method == "GET"
            and "{" not in endpoint.path
            and endpoint.scope is not None
            and endpoint.name not in {"claims_made_by_request", "workspaces_list", "scrape_all"}  # the operator's
        ):
            reply = await guarded.call("GET", endpoint.path, headers=ours)
            assert reply.status == 200, (endpoint.name, reply)
            assert "theirs" not in reply.body.decode(), (endpoint.name, reply)


async def test_submit_cannot_name_another_workspace_in_a_view_field(guarded: Running, ours: dict[str, str]) -> None:
    body = {"workspace_id": "theirs", "agent_id": "ada", "issue_id": "i", "trigger_type": "comment"}
    reply = await guarded.call("POST", "/api/tasks?view=aegis", body, headers=ours)
    assert (reply.status, reply.code, reply.json["where"]) == (404, "not_found", "workspace_id")


UNDER_A_CLAIM = ["start", "claims_message", "claims_pin_session", "claims_progress"]
UNDER_A_CLAIM += ["complete", "fail", "release", "spawn", "waits_request"]
IN_A_BATCH = ["batch_start", "batch_complete", "batch_fail", "batch_release"]


async def claim_with(api: Running, header: dict[str, str], *, start: bool) -> Any:
    await waiting(api.state.queue)
    reply = await api.post("/api/tasks/claim", {"agent_id": "ada", "start": start}, headers=header)
    return reply["assignments"][0]


async def call_under(api: Running, name: str, claim: Any) -> Call:
    """The endpoint's arranged call, but under this claim."""
    arranged = await CALLS[name](api.state.queue.in_workspace("elsewhere"))
    body = {**arranged.body, "token": claim["token"]}
    if name == "waits_request":
        body["tasks"] = [await waiting(api.state.queue)]
    return Call({"task_id": claim["task"]["id"]}, body)


async def write(api: Running, name: str, call: Call, header: dict[str, str]) -> Reply:
    endpoint = BY_NAME[name]
    return await api.call(endpoint.method, call.path(endpoint), call.body, headers=header)


@pytest.mark.parametrize("name", UNDER_A_CLAIM)
async def test_worker_writes_only_under_claims_of_its_own_token(guarded: Running, name: str) -> None:
    mine, other, operator = [await token(guarded.state.queue, scope) for scope in ("work", "work", "operate")]
    claim = await claim_with(guarded, mine, start=name != "start")
    call = await call_under(guarded, name, claim)
    before = await everything(guarded.state.queue)
    refused = await write(guarded, name, call, other)
    assert await everything(guarded.state.queue) == before
    assert (refused.status, refused.code) == (403, "not_your_claim")
    assert (await write(guarded, name, call, operator)).status == 403, "operate alone does not open the endpoint"
    both = await token(guarded.state.queue, "work", "operate")
    assert (await write(guarded, name, call, both)).status == BY_NAME[name].status


@pytest.mark.parametrize("name", UNDER_A_CLAIM)
async def test_token_of_the_claim_can_write(guarded: Running, name: str) -> None:
    mine = await token(guarded.state.queue, "work")
    claim = await claim_with(guarded, mine, start=name != "start")
    reply = await write(guarded, name, await call_under(guarded, name, claim), mine)
    assert reply.status == BY_NAME[name].status, reply


def test_access_page_describes_every_scope() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/access.md").read_text()
    for scope, meaning in MEANING.items():
        assert f"| `{scope}` | {meaning} |" in page
    assert "with `work`, write under any claim" in MEANING["operate"]


async def test_heartbeat_under_a_claim_of_another_token_is_lost(guarded: Running) -> None:
    mine, other = [await token(guarded.state.queue, "work") for _ in range(2)]
    claim = await claim_with(guarded, mine, start=True)
    path = f"/api/tasks/{claim['task']['id']}/heartbeat"
    before = await guarded.state.queue.get(claim["task"]["id"])
    found = await guarded.post(path, {"token": claim["token"]}, headers=other)
    assert found["action"] == "lost"
    assert (await guarded.state.queue.get(claim["task"]["id"])).claim == before.claim
    assert (await guarded.post(path, {"token": claim["token"]}, headers=mine))["action"] == "continue"


@pytest.mark.parametrize("name", IN_A_BATCH)
async def test_batch_refuses_only_claims_of_another_token(guarded: Running, name: str) -> None:
    mine, other = [await token(guarded.state.queue, "work") for _ in range(2)]
    await guarded.state.queue.agents.register(id="ada", max_concurrent_tasks=2)
    claims = [await claim_with(guarded, header, start=name != "batch_start") for header in (mine, other)]
    arranged = await CALLS[name](guarded.state.queue.in_workspace("elsewhere"))
    ((field, (item,)),) = arranged.body.items()
    tokens = [claim["token"] for claim in claims]
    items = tokens if isinstance(item, str) else [{**item, "token": each} for each in tokens]
    found = (await write(guarded, name, Call({}, {field: items}), mine)).json["outcomes"]
    assert [each.get("error", {}).get("code") for each in found] == [None, "not_your_claim"]


@pytest.mark.parametrize("view", ["aegis", "loki"])
async def test_write_without_a_claim_token_resolves_only_own_claims(guarded: Running, view: str) -> None:
    mine, other = [await token(guarded.state.queue, "work") for _ in range(2)]
    claim = await claim_with(guarded, mine, start=True)
    path = f"/api/tasks/{claim['task']['id']}/complete?view={view}"
    refused = await guarded.call("POST", path, {}, headers=other)
    assert (refused.status, refused.code) == (403, "not_your_claim")
    assert (await guarded.call("POST", path, {}, headers=mine)).status == 200


async def test_claims_are_returned_only_to_the_token_that_made_them(guarded: Running) -> None:
    mine, other = [await token(guarded.state.queue, "work") for _ in range(2)]
    await waiting(guarded.state.queue)
    await guarded.post("/api/tasks/claim", {"agent_id": "ada"}, headers={**mine, "Idempotency-Key": "k"})
    path = "/api/claims?who=ada&request=k"
    assert len((await guarded.get(path, headers=mine))["tasks"]) == 1
    assert (await guarded.get(path, headers=other))["tasks"] == []


async def test_secret_is_returned_once_and_stored_nowhere(guarded: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    admin = await token(guarded.state.queue, "admin")
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
    assert rest not in str(await everything(guarded.state.queue))
    assert rest not in caplog.text + str([record.__dict__ for record in caplog.records])


async def test_server_error_reveals_no_secret(
    guarded: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_call: Any) -> None:
        raise RuntimeError("it broke")

    admin = await token(guarded.state.queue, "admin")
    monkeypatch.setattr(operation_of(Agents.list), "implementation", broken)
    reply = await guarded.call("GET", "/api/agents", headers=admin)
    assert (reply.status, reply.code) == (500, "internal")
    assert "it broke" not in reply.body.decode()
    assert reply.json["request_id"] in [getattr(record, "request_id", None) for record in caplog.records]
    assert admin["Authorization"].split("_", 2)[2] not in caplog.text


OURS = ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:80", "app.localhost"]
OTHERS = [
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:80", "xlocalhost"),
    *("localhost@evil.example", "8.8.8.8", "10.0.0.1", "[::2]", "[::1", "2130706433", "", "localhost evil.example"),
]


@pytest.fixture
async def port(api: Running) -> AsyncIterator[raw.TaskLine]:
    async with raw.line(api.url) as line:
        yield line


@pytest.mark.parametrize("host", OURS)
async def test_local_host_names_are_served(port: raw.TaskLine, host: str) -> None:
    port.send(raw.request("GET", "/api/me", host=host))
    assert (await port.answer()).status == 200


@pytest.mark.parametrize("host", OTHERS)
async def test_foreign_host_name_is_refused(port: raw.TaskLine, host: str) -> None:
    """A page of evil.example can point its name to this server: the browser then treats it as the same site."""
    port.send(raw.request("GET", "/api/me", host=host))
    found = await port.answer()
    assert (found.status, found.json["code"], found.json["where"]) == (403, "forbidden", "Host")


async def test_request_without_a_host_is_refused(port: raw.TaskLine) -> None:
    port.send(b"GET /api/me HTTP/1.1\r\n\r\n")
    assert (await port.answer()).status == 403


FOREIGN = ["http://evil.example", "https://localhost.evil.example", "null", "file://", "", "http://[", "http://]["]


@pytest.mark.parametrize("origin", FOREIGN)
async def test_pages_of_other_sites_are_refused(api: Running, origin: str) -> None:
    for method, path in (("POST", "/api/tasks"), ("GET", "/api/tasks")):
        body = {"type": "noop"} if method == "POST" else None
        reply = await api.call(method, path, body, headers={"Origin": origin})
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Origin")
    output = await first_message(api, "/ws?after=0", headers={"Origin": origin})
    assert (output["event"], output["code"]) == ("error", "forbidden")
    assert (await api.get("/api/tasks"))["tasks"] == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_pages_of_this_server_are_served(api: Running, scheme: str) -> None:
    """Also through a local proxy that adds TLS."""
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
async def test_own_origin_is_recognised_in_every_port_notation(api: Running, origin: str, host: str) -> None:
    headers = {"Origin": origin, "Host": host, "Content-Type": "application/json"}
    made = await api.post("/api/tasks", {"type": "noop"}, headers=headers)
    assert made["status"] == "ready"


NEIGHBOURS = [
    "http://localhost:3000",
    "http://other.localhost",
    "http://127.0.0.1:1",
    "http://[::1]",
    "https://localhost",
]


@pytest.mark.parametrize("origin", NEIGHBOURS)
async def test_pages_of_other_local_servers_are_refused(api: Running, origin: str) -> None:
    """For example a development server that an agent started."""
    headers = {"Origin": origin, "Content-Type": "application/json"}
    reply = await api.call("POST", "/api/tasks", {"type": "noop"}, headers=headers)
    assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Origin")
    live = await api.call("GET", "/api/events", headers={"Origin": origin, "Accept": "text/event-stream"})
    assert (live.status, live.code) == (403, "forbidden")
    output = await first_message(api, "/ws?after=0", headers={"Origin": origin})
    assert (output["event"], output["code"]) == ("error", "forbidden")
    assert (await api.get("/api/tasks"))["tasks"] == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_cross_site_fetch_metadata_is_refused(api: Running, site: str) -> None:
    """Some browser requests carry no Origin, such as images; every current browser names the site."""
    page = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    for method, path in (("POST", "/api/tasks"), ("GET", "/api/events?wait_sec=25"), ("GET", "/api/tasks")):
        reply = await api.call(method, path, {"type": "noop"} if method == "POST" else None, headers=page)
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Sec-Fetch-Site")
    output = await first_message(api, "/ws?after=0", headers={"Sec-Fetch-Site": site})
    assert (output["event"], output["code"]) == ("error", "forbidden")
    form = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert (await api.call("POST", "/api/tasks", {"type": "noop"}, headers=form)).status == 403
    assert (await api.call("GET", "/api/tasks", headers=form)).json["tasks"] == [], "a link may be opened"


async def test_browser_request_must_have_json_content_type(api: Running) -> None:
    """A form can send text/plain to another site without a preflight; own pages have no need to."""
    page = {"Origin": api.url}
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = await api.call("POST", "/api/tasks", {"type": "noop"}, headers={**page, "Content-Type": kind})
        assert (reply.status, reply.code, reply.json["where"]) == (403, "forbidden", "Content-Type")
    await api.post("/api/tasks", {"type": "noop"}, headers={"Content-Type": "application/x-www-form-urlencoded"})


async def test_websocket_with_foreign_host_is_refused(api: Running) -> None:
    found = await first_message(api, "/ws?after=0", headers={"Host": "evil.example"})
    assert (found["event"], found["code"]) == ("error", "forbidden")


async def test_answers_have_no_cors_headers(api: Running) -> None:
    """No header lets a browser pass an answer to a page of another site, or allows its preflight."""
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
    """Behind a proxy the host can have any name; the secret is what counts."""
    header = await token(guarded.state.queue, "read")
    reply = await guarded.call(
        "GET", "/api/me", headers={**header, "Host": "queue.example", "Origin": "https://a.example"}
    )
    assert reply.status == 200


async def test_unknown_token_is_refused_where_none_is_needed(api: Running) -> None:
    assert (await api.call("GET", "/api/me", headers=bearer("sw_nobody"))).status == 401


def test_any_host_text_is_classified_without_error() -> None:
    assert all(is_local(host) for host in OURS)
    assert not any(is_local(host) for host in [*OTHERS, "[", "]", "::", "a]b[", "\x00", "//"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "queue.example", ""])  # noqa: S104  # refused here
def test_listening_beyond_localhost_requires_tokens(host: str) -> None:
    with pytest.raises(InputError, match="--tokens"):
        check_options(Options(store="sqlite:///q.db", host=host))
    check_options(Options(store="sqlite:///q.db", host=host, tokens=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  # refused here
def test_listening_beyond_localhost_forbids_the_test_clock(host: str) -> None:
    with pytest.raises(InputError, match="--test-clock"):
        check_options(Options(store="sqlite:///q.db", host=host, tokens=True, test_clock=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_listening_on_localhost_requires_no_tokens(host: str) -> None:
    check_options(Options(store="sqlite:///q.db", host=host, test_clock=True))


async def test_head_request_answers_like_get_without_body(api: Running) -> None:
    task_id = await waiting(api.state.queue)
    for path in ("/healthz", "/api/tasks", f"/api/tasks/{task_id}", "/api/tasks/nobody"):
        got, asked = await api.call("GET", path), await api.call("HEAD", path)
        assert (asked.status, asked.body) == (got.status, b"")
        assert asked.headers["content-type"] == got.headers["content-type"]
    assert (await api.call("HEAD", "/api/tasks/claim")).status == 404, "there is no task of that name"
    live = await api.call("HEAD", "/api/events", headers={"Accept": "text/event-stream"})
    assert (live.status, live.body) == (200, b""), "and it ends"


async def test_head_request_requires_the_same_scope(guarded: Running) -> None:
    assert (await guarded.call("HEAD", "/api/tasks")).status == 401
    assert (await guarded.call("HEAD", "/api/tokens", headers=await token(guarded.state.queue, "read"))).status == 403
