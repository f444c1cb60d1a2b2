"""The OpenAPI document is correct for every route, answer and refusal, with any input."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema_rs
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    status_code_conformance,
)

from shiftwork.compat.views import VIEWS
from shiftwork.model.errors import all_errors
from shiftwork.server.endpoint import PlainText, Raw
from shiftwork.server.openapi import document, refusals
from shiftwork.server.routes import ENDPOINTS
from shiftwork.views import NATIVE
from shiftwork.wire import problem
from tests.conformance.steps import dead_letter
from tests.conftest import DEEP
from tests.server.endpoints import BY_NAME, CALLS, Call, held, waiting
from tests.server.running import Running, running
from tests.services import Databases

DOCUMENTS = {view: document(ENDPOINTS, view) for view in (NATIVE, *VIEWS)}
DOCUMENT = DOCUMENTS[NATIVE]
OPERATIONS_OF = {
    view: {
        operation["operationId"]: {**operation, "parameters": [*path.get("parameters", ()), *operation["parameters"]]}
        for path in described["paths"].values()
        for method, operation in path.items()
        if method != "parameters"
    }
    for view, described in DOCUMENTS.items()
}
OPERATIONS = OPERATIONS_OF[NATIVE]


def schema_at(operation: dict[str, Any], status: int, view: str) -> dict[str, Any]:
    """The schema of one answer, with all that it refers to."""
    answer = resolved(operation["responses"][str(status)], view)
    (media,) = [media for kind, media in answer["content"].items() if "json" in kind]
    return {**media["schema"], "components": DOCUMENTS[view]["components"]}


def resolved(component: dict[str, Any], view: str = NATIVE) -> dict[str, Any]:
    """A component, or what a reference to one leads to."""
    reference = component.get("$ref")
    if reference is None:
        return component
    _, _, kind, name = reference.split("/")
    found: dict[str, Any] = DOCUMENTS[view]["components"][kind][name]
    return found


@pytest.mark.parametrize("view", DOCUMENTS)
def test_openapi_document_is_valid(view: str) -> None:
    described = DOCUMENTS[view]
    schemathesis.openapi.from_dict(described).validate()
    for name, schema in described["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid(schema), name
    for kind, components in described["components"].items():
        named = set(re.findall(rf'"\$ref": "#/components/{kind}/([\w.-]+)"', json.dumps(described)))
        assert named <= components.keys()


async def test_served_openapi_document_is_the_built_one(api: Running) -> None:
    assert await api.get("/openapi.json") == json.loads(json.dumps(DOCUMENT))
    for view in VIEWS:
        assert await api.get(f"/openapi/{view}.json") == json.loads(json.dumps(DOCUMENTS[view]))


def test_native_document_is_small_and_every_answer_has_one_shape() -> None:
    assert len(msgspec.json.encode(DOCUMENT)) < 250_000
    assert "view" not in {name.lower() for name in DOCUMENT["components"]["schemas"]}
    for name, operation in OPERATIONS.items():
        for status, response in operation["responses"].items():
            for media in resolved(response).get("content", {}).values():
                unions = media.get("schema", {}).get("anyOf", [])
                assert len(unions) <= 2, f"{name} {status}"


def test_every_route_is_described_correctly() -> None:
    assert sorted(endpoint.name for endpoint in ENDPOINTS) == sorted(OPERATIONS), "each once, under a name of its own"
    for endpoint in ENDPOINTS:
        assert DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]["operationId"] == endpoint.name
        operation = OPERATIONS[endpoint.name]
        assert operation["summary"], f"{endpoint.name} says nothing about itself"
        assert operation.get("x-scope") == endpoint.scope
        assert ("requestBody" in operation) == (endpoint.body is not None)
        places = [(parameter["in"], parameter["name"]) for parameter in map(resolved, operation["parameters"])]
        assert [name for place, name in places if place == "path"] == re.findall(r"{(\w+)}", endpoint.path)
        assert (("header", "Idempotency-Key") in places) == (endpoint.changes and endpoint.scope is not None)
        assert str(endpoint.status) in operation["responses"]


def test_every_refusal_of_a_route_is_described() -> None:
    for endpoint in ENDPOINTS:
        responses = OPERATIONS[endpoint.name]["responses"]
        for error in refusals(endpoint):
            status = str(problem.status_of(error))
            possible = [resolved(responses[each]) for each in (status, "default") if each in responses]
            (found,) = [each for each in possible if f"`{error.code}`" in each["description"]]
            assert problem.MEDIA_TYPE in found["content"]


def test_every_error_class_has_a_status() -> None:
    unplaced = {error.code for error in all_errors() if problem.status_of(error) == 500}
    assert unplaced == {"error"}


async def test_every_answer_matches_its_schema(api: Running) -> None:
    """Of every callable route, in native names and in those of every document."""
    for endpoint in ENDPOINTS:
        for view in [NATIVE] if endpoint.viewed_body else [NATIVE, *VIEWS]:
            workspace = f"{endpoint.name}-{view}"
            if endpoint.name == "snapshots_take":
                await api.pass_time(61)  # one a minute is taken
            arrange = CALLS.get(endpoint.name)
            if arrange is None and (endpoint.name == "claims_made_by_request" or endpoint.changes):
                continue
            call = await arrange(api.state.queue.in_workspace(workspace)) if arrange is not None else None
            asked = {"view": view, **({"workspace": workspace} if endpoint.scope else {})}
            body = call.body if call is not None and endpoint.changes else None
            reply = await api.call(endpoint.method, (call or Call()).path(endpoint, **asked), body)
            assert reply.status == endpoint.status, (endpoint.name, view, reply)
            if reply.status != 204 and endpoint.answer not in {Raw, PlainText}:
                jsonschema_rs.validate(schema_at(OPERATIONS_OF[view][endpoint.name], endpoint.status, view), reply.json)


async def test_view_schemas_match_only_their_own_tasks(api: Running) -> None:
    """The schema of a view matches its own answers, and none of the others."""
    task_id = (await held(api.state.queue)).id
    names = {view: f"{view.capitalize()}Task" for view in VIEWS}
    for view in VIEWS:
        task = await api.get(f"/api/tasks/{task_id}?view={view}")
        fits = {
            other
            for other, name in names.items()
            if jsonschema_rs.is_valid(DOCUMENTS[other]["components"]["schemas"][name], task)
        }
        assert fits == {view}


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, negative_data_rejection]
Case = schemathesis.Case[Any]


@functools.cache
def in_view(view: str) -> Any:
    """The API in the names of a view, as Schemathesis reads it."""
    return schemathesis.openapi.from_dict(DOCUMENTS[view])


def described(*phases: str) -> Any:
    """The native API as Schemathesis reads it, with the same generated calls every time."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.generation.update(deterministic=True, database="none")
    schema.config.phases.update(phases=list(phases))
    return schema


SAME = ["submit_dag", "dags_add_tasks", "spawn"]
"""They take the same tasks as `submit`, whose edges are enough; these are met by chance."""


@functools.cache
def edges() -> Any:
    return described("coverage", "fuzzing")


@functools.cache
def chance() -> Any:
    return described("coverage", "fuzzing") if DEEP else described("fuzzing")


class Served:
    """A server in a separate thread, with a token and the names of existing objects."""

    def __init__(self, url: str, headers: dict[str, str], names: dict[str, list[str]]) -> None:
        self.url = url
        self.headers = headers
        self.names = names


@asynccontextmanager
async def furnished(store: str, *, tokens: bool) -> AsyncIterator[Served]:
    """Create tasks in several states, an agent, a DAG, a dead letter and a token."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(store, tokens=tokens, artifacts=folder, snapshots=f"{folder}/snapshots") as api:
            yield await furnish(api, tokens=tokens)


async def furnish(api: Running, *, tokens: bool) -> Served:
    queue = api.state.queue
    await queue.agents.register(id="ada", max_concurrent_tasks=100)
    done = await held(queue, issue_id="issue")
    await queue.complete(done.token, {"n": 1})
    tasks = [await waiting(queue, id="own name"), (await held(queue)).id, done.id, await dead_letter(queue)]
    dag = await queue.submit_dag({"tasks": [{"type": "noop"}, {"type": "noop"}]})
    made = await queue.tokens.create("admin", ["admin"])
    names = {"task_id": tasks, "dag_id": [dag[0].dag_id or ""], "agent_id": ["ada"], "issue_id": ["issue"]}
    kept = await queue.artifacts.put(b"{}", name="empty.json")
    headers = {"Authorization": f"Bearer {made.secret}"} if tokens else {}
    return Served(api.url, headers, {**names, "runtime_id": ["ada"], "token_id": ["nobody"], "artifact_id": [kept.id]})


@contextmanager
def in_a_thread(store: str, *, tokens: bool) -> Iterator[Served]:
    """Run a server in a thread, since Schemathesis calls from outside any loop."""
    found: list[Served] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with furnished(store, tokens=tokens) as served:
            found.append(served)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with in_a_thread(f"sqlite:///{tmp_path_factory.mktemp('open')}/queue.db", tokens=False) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(postgres: Databases, migrated_template: str) -> Iterator[Served]:
    name = postgres.create_database(migrated_template)
    with in_a_thread(postgres.dsn(name), tokens=True) as server:
        yield server
    postgres.drop_database(name)


def aim(case: Case, served: Served) -> None:
    """Replace half of the generated names by existing ones, and shorten waits."""
    for name, value in (case.path_parameters or {}).items():
        if name in served.names and len(str(value)) % 2:
            known = served.names[name]
            case.path_parameters[name] = known[len(str(value)) % len(known)]
    for part in (case.query, case.body):
        if isinstance(part, dict) and re.fullmatch(r"\d+(\.\d+)?", str(part.get("wait_sec"))):
            part["wait_sec"] = min(float(str(part["wait_sec"])), 0.01)


def is_documented(_ctx: Any, response: Any, case: Case) -> None:
    """Check that a refusal has one of the documented codes of its endpoint."""
    if response.headers.get("content-type") == [problem.MEDIA_TYPE] and response.status_code != 405:
        endpoint = BY_NAME[case.operation.definition.raw["operationId"]]
        assert response.json()["code"] in {error.code for error in refusals(endpoint)}


def fits_its_schema(_ctx: Any, response: Any, case: Case) -> None:
    """Check that an answer matches the document of the view of the call."""
    (view, *_) = parse_qs(urlsplit(response.request.url).query).get("view", [NATIVE])
    operation = case.operation
    if view in VIEWS:
        operation = in_view(view).find_operation_by_id(operation.definition.raw["operationId"])
    operation.validate_response(response, case=case)


UNREAD = re.compile(r"Expected|Object |Invalid enum|(Number|Integer value) out of range")
"""How refusals begin that come from reading, not from what the call would do."""


def is_read(_ctx: Any, response: Any, case: Case) -> None:
    """Check that input matching the schema is parsed, even if it is refused later."""
    is_wrong = case.meta is not None and case.meta.generation.mode.is_negative
    may_be_a_documents = BY_NAME[case.operation.definition.raw["operationId"]].viewed_body
    if is_wrong or may_be_a_documents or response.headers.get("content-type") != [problem.MEDIA_TYPE]:
        return
    found = response.json()
    assert found["code"] != "malformed"
    assert found["code"] != "invalid_input" or not UNREAD.match(found["detail"])


quickly = settings(
    max_examples=100 if DEEP else 4,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@quickly
def send(case: Case, served: Served) -> None:
    aim(case, served)
    checks = [*CHECKS, fits_its_schema, is_documented, is_read]
    case.call_and_validate(base_url=served.url, headers=served.headers, checks=checks, timeout=30)


def try_out(schema: Any, name: str, served: Served) -> None:
    """Send all generated calls for one endpoint.

    `schema.parametrize()` would generate requests for all endpoints during collection: ten seconds in every process,
    even when none of these tests is selected. This does the same for one endpoint when its test runs.
    """
    operation = schema.find_operation_by_id(name)
    build_operation_test(
        config=schema.config, operation=operation, test_func=send, given_kwargs={}, feedback=FeedbackSources()
    )(served=served)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if DEEP or name not in SAME])
def test_answers_to_generated_input_match_the_schema(name: str, served: Served) -> None:
    """At the bounds of every schema, beyond them, and at random."""
    try_out(edges(), name, served)


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_with_tokens_on_postgresql_match_the_schema(name: str, guarded: Served) -> None:
    try_out(chance(), name, guarded)
