"""Every operation in every view, and the default view of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from shiftwork.client import Client
from shiftwork.compat.views import VIEWS
from shiftwork.server.endpoint import PlainText, Raw
from shiftwork.server.rendering import WRITTEN, is_moment
from shiftwork.server.routes import ENDPOINTS
from tests.server.endpoints import CALLS, Call
from tests.server.running import Running, running
from tests.server.watching import follow, watch

OUR_ID = re.compile(r"\b(?:task|dag)_[0-7][0-9A-HJKMNP-TV-Z]{25}\b(?!\.\d)")
OPERATIONS = [
    endpoint for endpoint in ENDPOINTS if not endpoint.viewed_body and endpoint.answer not in {Raw, PlainText}
]
"""Bodies in a document's own names are sent by the acceptance tests."""


@pytest.mark.parametrize("view", VIEWS)
async def test_every_operation_answers_in_every_view(api: Running, view: str) -> None:
    """Times are ISO 8601, and documents with their own id format never show native ids."""
    for endpoint in OPERATIONS:
        workspace = f"{endpoint.name}-{view}"
        arrange = CALLS.get(endpoint.name)
        if arrange is None and (endpoint.name == "claims_made_by_request" or endpoint.changes):
            continue
        call = await arrange(api.state.queue.in_workspace(workspace)) if arrange is not None else Call()
        asked = {"view": view, **({"workspace": workspace} if endpoint.scope else {})}
        reply = await api.call(endpoint.method, call.path(endpoint, **asked), call.body if endpoint.changes else None)
        assert reply.status == endpoint.status, (endpoint.name, reply)
        answer = reply.json if reply.body else None
        assert [found for found in numbers(answer) if is_moment(found)] == [], (endpoint.name, answer)
        if view in {"aegis", "loki"}:
            assert [text for text in texts(answer) if OUR_ID.search(text)] == [], (endpoint.name, answer)


UNUSUAL = [[], [5], 5, "x", {"tasks": 5}, {"tasks": [5]}, {"tasks": [], "unknown": 1}, {"unknown": 1}, {"note": 5}]


@pytest.mark.parametrize("view", VIEWS)
async def test_no_body_in_a_view_is_an_error_of_the_server(api: Running, view: str) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.viewed_body:
            workspace = f"{endpoint.name}-{view}"
            call = await CALLS[endpoint.name](api.state.queue.in_workspace(workspace))
            for body in UNUSUAL:
                reply = await api.call(endpoint.method, call.path(endpoint, view=view, workspace=workspace), body)
                assert reply.status < 500, (endpoint.name, body, reply)


def numbers(value: Any, name: str = "") -> Iterator[str]:
    """The names under which numbers stand."""
    if isinstance(value, dict):
        for inner, found in value.items():
            if inner not in WRITTEN:
                yield from numbers(found, inner)
    elif isinstance(value, list):
        for found in value:
            yield from numbers(found, name)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield name


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in WRITTEN:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("profile", VIEWS)
async def test_profile_sets_the_default_view(store_url: str, profile: str) -> None:
    async with running(store_url, profile=profile) as api:
        made = await api.state.queue.submit(type="code", idempotency_key="once", created_by="human:ada")
        plain = await api.get(f"/api/tasks/{made.id}")
        assert plain.keys() == (await api.get(f"/api/tasks/{made.id}?view={profile}")).keys()
        assert plain["status"] == VIEWS[profile].status_out("ready")
        assert (await api.get(f"/api/tasks/{made.id}?view=native"))["status"] == "ready"
        assert (await api.get("/healthz"))["view"] == profile
        assert (await api.get("/openapi.json"))["info"]["x-default-view"] == profile


async def test_view_can_be_chosen_independently_of_the_profile(store_url: str) -> None:
    async with running(store_url, profile="loki", view="native") as api:
        made = await api.post("/api/tasks", {"type": "code"})
        assert (made["id"].startswith("task_"), made["status"]) == (True, "ready")
        assert (await api.get("/healthz"))["view"] == "native"


async def test_live_events_use_the_default_view(store_url: str) -> None:
    async with (
        running(store_url, profile="aegis") as api,
        watch(api.http, api.url, "?after=0") as socket,
        watch(api.http, api.url, "?after=0&view=native") as ours,
        follow(api.http, api.url, "?after=0") as lines,
    ):
        await api.state.queue.submit(type="agent", target_agent_id="a1", issue_id="i1")
        assert (await socket.message())["event"] == "task:queued"
        assert (await ours.message())["event"] == "task.created"
        assert (await lines.event())["event"] == "task:queued"
        page = await api.get("/api/events")
        assert [event["event"] for event in page["events"]] == ["task:queued"]
        await socket.subscribe(after=0, view="native")
        assert (await socket.message())["event"] == "task.created"


@pytest.mark.parametrize("profile", VIEWS)
async def test_client_works_with_servers_of_any_view(store_url: str, profile: str) -> None:
    async with running(store_url, profile=profile, view=profile) as api, await Client.open(api.url) as client:
        made = await client.submit(type="code", idempotency_key="k", target_agent_id="a1", issue_id="i1")
        (claim,) = await client.claim("a1", start=True)
        assert claim.id == made.id
        done = await client.complete(claim.token, {"n": 1}, decision_report={"decision": "as asked"})
        assert done.status == "completed"
        assert (await client.get(made.id)).status == "completed"
        events = (await client.events()).events
        assert events[0].names[0] == "task.created"
