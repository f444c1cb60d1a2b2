"""Conditional requests, compressed answers and request ids."""

from __future__ import annotations

import gzip
import json
from typing import Any

import aiohttp
import pytest

from shiftwork.compat.views import VIEWS
from tests.server.endpoints import held, waiting
from tests.server.running import Reply, Running


async def poll(api: Running, path: str, tag: str) -> Reply:
    return await api.call("GET", path, headers={"If-None-Match": tag})


async def test_unchanged_answer_is_304_with_its_etag(api: Running) -> None:
    made = await api.state.queue.submit_dag({"tasks": [{"type": "noop"}, {"type": "noop"}]})
    paths = ("/api/tasks", "/api/tasks?view=factory&status=CREATED", f"/api/tasks/{made[0].id}", "/api/dags")
    for path in (*paths, f"/api/dags/{made[0].dag_id}"):
        first = await api.call("GET", path)
        tag = first.headers["etag"]
        for known in (tag, tag.removeprefix("W/"), f'"other", {tag}'):
            again = await poll(api, path, known)
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag), (path, known)
        assert (await poll(api, path, 'W/"other"')).status == 200
        other = path + ("&" if "?" in path else "?") + "workspace=default"
        assert (await poll(api, other, tag)).status == 200, "another question"


async def test_passing_time_alone_does_not_change_the_etag(api: Running) -> None:
    path = f"/api/tasks/{await waiting(api.state.queue, deadline=api.state.queue.engine.store.now() + 7200)}"
    tags = {asked: (await api.call("GET", asked)).headers["etag"] for asked in (path, "/api/tasks")}
    before = await api.get(path)
    await api.pass_time(3600)
    for asked, tag in tags.items():
        assert (await poll(api, asked, tag)).status == 304
    after = await api.get(path)
    assert after["age_minutes"] >= 60, "though it would be told"
    assert after["effective_priority"] < before["effective_priority"]


@pytest.mark.parametrize("listed", [False, True])
async def test_every_change_changes_the_etag(api: Running, *, listed: bool) -> None:
    claim = await held(api.state.queue, start=False)
    under = {"token": claim.token}
    path = f"/api/tasks/{claim.id}"
    asked = "/api/tasks" if listed else path
    changes: list[tuple[str, dict[str, Any]]] = [
        ("start", under),
        ("progress", {**under, "progress": {"done": 1}}),
        ("heartbeat", {**under, "usage": {"cost_usd": 1}}),
        ("heartbeat", {**under, "usage": {"tokens_in": 1}}),
        ("session", {**under, "session_id": "s"}),
        ("complete", {**under, "data": 1}),
    ]
    tags = [(await api.call("GET", asked)).headers["etag"]]
    for verb, body in changes:
        await api.post(f"{path}/{verb}", body)
        output = await poll(api, asked, tags[-1])
        assert output.status == 200, verb
        tags.append(output.headers["etag"])
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("listed", [False, True])
async def test_missing_report_changes_the_etag(api: Running, *, listed: bool) -> None:
    await api.state.queue.settings.set("require_decision_report", value=True)
    claim = await held(api.state.queue)
    path = f"/api/tasks/{claim.id}"
    asked = "/api/tasks" if listed else path
    tag = (await api.call("GET", asked)).headers["etag"]
    refused = await api.call("POST", f"{path}/complete", {"token": claim.token, "data": 1})
    assert (refused.status, refused.code) == (422, "report_required")
    output = await poll(api, asked, tag)
    assert output.status == 200
    assert (output.json["tasks"][0] if listed else output.json)["incomplete"] is True


@pytest.mark.parametrize("listed", [False, True])
async def test_changed_settings_change_the_etag_of_tasks(api: Running, *, listed: bool) -> None:
    path = f"/api/tasks/{await waiting(api.state.queue)}"
    asked = "/api/tasks" if listed else path
    tag = (await api.call("GET", asked)).headers["etag"]
    await api.state.queue.settings.use_profile("loki")
    output = await poll(api, asked, tag)
    assert output.status == 200
    assert (await poll(api, asked, output.headers["etag"])).status == 304


async def test_etag_of_dag_page_changes_with_any_dag(api: Running) -> None:
    made = await api.state.queue.submit_dag({"tasks": [{"type": "noop"}, {"type": "noop"}]})
    tag = (await api.call("GET", "/api/dags")).headers["etag"]
    await api.post(f"/api/tasks/{made[0].id}/cancel")
    output = await poll(api, "/api/dags", tag)
    assert (output.status, output.json["dags"][0]["done"]) == (200, 1)


@pytest.mark.parametrize("view", VIEWS)
async def test_usage_is_charged_with_the_result_in_every_view(api: Running, view: str) -> None:
    claim = await held(api.state.queue)
    body = {"token": claim.token, "usage": {"cost_usd": 1.5}}
    await api.post(f"/api/tasks/{claim.id}/complete?view={view}", body)
    task = await api.state.queue.get(claim.id)
    assert (task.status, task.cost_usd) == ("completed", 1.5)


async def test_etag_of_task_page_changes_with_any_task(api: Running) -> None:
    first, _second = await waiting(api.state.queue), await waiting(api.state.queue)
    tag = (await api.call("GET", "/api/tasks")).headers["etag"]
    await api.post(f"/api/tasks/{first}/cancel")
    assert (await poll(api, "/api/tasks", tag)).status == 200
    tag = (await api.call("GET", "/api/tasks")).headers["etag"]
    await waiting(api.state.queue)
    assert (await poll(api, "/api/tasks", tag)).status == 200


@pytest.mark.requirement("C-246")
async def test_update_with_if_match_is_applied_only_to_the_version_read(api: Running) -> None:
    path = f"/api/tasks/{await waiting(api.state.queue)}"
    read = await api.call("GET", path)
    tag, version = read.headers["etag"], read.json["version"]
    assert (await api.call("PATCH", path, {"priority": 7}, headers={"If-Match": tag})).status == 200
    for stale in (tag, str(version), f'"{version}"'):
        refused = await api.call("PATCH", path, {"priority": 1}, headers={"If-Match": stale})
        assert (refused.status, refused.code) == (412, "version_conflict")
        assert refused.json["facts"]["version"] > version
        refused = await api.call("POST", f"{path}/cancel", {}, headers={"If-Match": stale})
        assert (refused.status, refused.code) == (412, "version_conflict")
    task = await api.get(path)
    assert (task["priority"], task["status"]) == (7, "ready")
    assert (await api.call("PATCH", path, {"priority": 1}, headers={"If-Match": "*"})).status == 200
    now = (await api.call("GET", path)).headers["etag"]
    assert (await api.call("POST", f"{path}/cancel", {}, headers={"If-Match": now})).status == 200


async def test_only_one_of_two_updates_with_the_same_etag_succeeds(api: Running) -> None:
    path = f"/api/tasks/{await waiting(api.state.queue)}"
    tag = {"If-Match": (await api.call("GET", path)).headers["etag"]}
    replies = [await api.call("PATCH", path, {"priority": number}, headers=tag) for number in (1, 2)]
    assert [reply.status for reply in replies] == [200, 412]
    assert (await api.get(path))["priority"] == 1


async def test_large_answers_are_compressed_on_request(api: Running) -> None:
    for _ in range(20):
        await waiting(api.state.queue)
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        plain = await http.get(f"{api.url}/api/tasks", headers={"Accept-Encoding": "identity"})
        packed = await http.get(f"{api.url}/api/tasks", headers={"Accept-Encoding": "gzip"})
        texts = await plain.read(), gzip.decompress(await packed.read())
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert int(packed.headers["content-length"]) < len(texts[0]) / 5
    assert [task["id"] for task in json.loads(texts[1])["tasks"]] == [t["id"] for t in json.loads(texts[0])["tasks"]]
    small = await api.call("GET", "/healthz", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip;q=0", False),
        ("br, gzip ; q=0.000, identity", False),
        ("*;q=0", False),
        ("not-gzip", False),
        ("identity;q=0.5, GZIP;q=0.1", True),
        ("gzip;q=1.0, *;q=0", True),
    ],
)
async def test_accept_encoding_without_gzip_gets_plain_answer(api: Running, accepted: str, *, is_packed: bool) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        answer = await http.get(f"{api.url}/openapi.json", headers={"Accept-Encoding": accepted})
        text = await answer.read()
    assert ("content-encoding" in answer.headers, text.startswith(b"{")) == (is_packed, not is_packed)
    assert answer.headers["vary"] == "accept-encoding"


async def test_request_id_is_returned_and_recorded_in_events(api: Running) -> None:
    mine = {"X-Request-Id": "req 42"}
    made = await api.call("POST", "/api/tasks", {"type": "noop"}, headers=mine)
    claimed = await api.call("POST", "/api/tasks/claim", {"agent_id": "ada"}, headers={"X-Request-Id": "claim"})
    token = claimed.json["assignments"][0]["token"]
    path = f"/api/tasks/{made.json['id']}"
    await api.call("POST", f"{path}/start", {"token": token}, headers={"X-Request-Id": "start"})
    unnamed = await api.call("POST", f"{path}/complete", {"token": token})
    assert made.headers["x-request-id"] == "req 42"
    assert claimed.headers["x-request-id"] == "claim"
    parameters = (await api.get("/api/events"))["events"]
    by_verb = {event["verb"]: event["request_id"] for event in parameters if event["task_id"] == made.json["id"]}
    assert by_verb == {
        "submitted": "req 42",
        "claimed": "claim",
        "started": "start",
        "completed": unnamed.headers["x-request-id"],
    }


async def test_idempotency_key_of_a_claim_is_recorded_in_its_events(api: Running) -> None:
    await waiting(api.state.queue)
    both = {"X-Request-Id": "req 42", "Idempotency-Key": "k-1"}
    claimed = await api.call("POST", "/api/tasks/claim", {"agent_id": "ada"}, headers=both)
    assert claimed.headers["x-request-id"] == "req 42"
    (event,) = (await api.get("/api/events?verb=claimed"))["events"]
    assert event["request_id"] == "k-1"
    found = await api.get("/api/claims?who=ada&request=k-1")
    assert [task["id"] for task in found["tasks"]] == [event["task_id"]]
    described = await api.get("/openapi.json")
    shared = described["components"]["parameters"]
    references = described["paths"]["/api/tasks/claim"]["post"]["parameters"]
    parameters = [shared[each["$ref"].rpartition("/")[2]] for each in references]
    assert "have the key instead" in next(each["description"] for each in parameters if each["name"] == "X-Request-Id")


async def test_refusal_returns_its_request_id(api: Running) -> None:
    for path in ("/api/tasks/nobody", "/nowhere", "/api/tasks?colour=red"):
        mine = await api.call("GET", path, headers={"X-Request-Id": "mine"})
        assert (mine.headers["x-request-id"], mine.json["request_id"]) == ("mine", "mine")
        unnamed = [await api.call("GET", path) for _ in range(2)]
        assert len({reply.headers["x-request-id"] for reply in unnamed}) == 2
        assert [reply.json["request_id"] for reply in unnamed] == [r.headers["x-request-id"] for r in unnamed]


async def test_actor_is_recorded_in_events(api: Running, guarded: Running) -> None:
    await api.post("/api/tasks", {"type": "noop"}, headers={"X-Actor": "human:ada"})
    made = await guarded.state.queue.tokens.create("ci", ["submit"])
    claimed_to_be = {"Authorization": f"Bearer {made.secret}", "X-Actor": "human:ada"}
    await guarded.post("/api/tasks", {"type": "noop"}, headers=claimed_to_be)
    actors = [
        [event.actor for event in (await server.state.queue.events()).events if event.verb == "submitted"]
        for server in (api, guarded)
    ]
    assert "human:ada" in actors[0]
    assert "token:ci" in actors[1], "whoever has a token is named by it"
