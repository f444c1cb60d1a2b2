"""The OpenAPI 3.1 document, generated from the routes, so that it matches what is read and answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from shiftwork import views
from shiftwork.engine.assignment import AssignmentRecord
from shiftwork.model.bounds import HEADER_TEXT
from shiftwork.model.errors import (
    AmbiguousId,
    BadText,
    Forbidden,
    IdempotencyKeyReused,
    InputError,
    Malformed,
    NotFound,
    OperationTimeout,
    Overloaded,
    ShiftworkError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    UnsupportedEncoding,
)
from shiftwork.server import request_parsing, view_schemas
from shiftwork.server.endpoint import Endpoint, PlainText, Query, Raw
from shiftwork.views import NATIVE
from shiftwork.views.view import View
from shiftwork.wire import problem

_DESCRIPTION = """A durable task queue for fleets of AI agents.

Times are seconds since 1970 (UTC). A body is read as JSON in UTF-8 whatever its Content-Type says, and refused with a
Content-Encoding; if a name occurs twice in an object, the last one counts; unknown fields and parameters are refused.
No text may contain a NUL or a lone surrogate. An id in a path may be any text, percent-encoded, even a slash (`%2F`).
Every refusal is `application/problem+json` with a stable `code`."""
_NATIVE = """Every call may name a `view`: `native` for the names described here, or one of the documents that Shiftwork
serves, whose names, states, ids and ISO 8601 times then apply; `/openapi/VIEW.json` describes each of them. A call
without a view uses this server's default, `{default}`."""
_IN_VIEW = """Every record, state, id and ISO 8601 time here has the name and form of the document `{view}`: call with
`?view={view}`, or start the server with `--view {view}`. `/openapi.json` describes the native API."""
_TEMPLATE = "#/components/schemas/{name}"
_ANY_OBJECT = {"type": "object"}
_BYTES = {"type": "string", "format": "binary"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_NUMBER = {"type": "integer", "minimum": 1, "maximum": 2**62}
_PLACES = {
    "task_id": "The task's id in any of its forms, or the name its submitter gave it.",
    "dag_id": "The DAG's id.",
    "agent_id": "The agent's id.",
    "provider": "The provider's name.",
    "account": "The name of the account at the provider.",
    "runtime_id": "The runtime's id.",
    "issue_id": "The issue's id.",
    "token_id": "The token's id.",
    "tag": "The tag.",
    "artifact_id": "The artifact's id, `artifact:sha256-…`.",
    "batch_id": "The batch's id.",
    "seq": "The alert's number.",
    "sink": "The sink's name.",
    "delivery_id": "The delivery's id, `msg_…`.",
    "name": "The trigger's name.",
    "type": "The type of the tasks.",
    "workspace": "The workspace.",
    "key": "What it applies to: `provider:NAME`, `account:NAME`, `model:NAME`, `type:NAME`, joined by commas.",
}


def document(endpoints: Sequence[Endpoint], view: str = NATIVE, default: str = NATIVE) -> dict[str, Any]:
    """The API in the names of one view, for a server whose default view is `default`."""
    from shiftwork import __version__  # noqa: PLC0415  # the package is still being imported when this module is

    declared = [kind for endpoint in endpoints for kind in (endpoint.body, endpoint.answer)]
    kinds = [problem.Problem, AssignmentRecord, *(kind for kind in declared if kind not in {None, Raw, PlainText})]
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=problem.schema, ref_template=_TEMPLATE)
    schema_of = {repr(kind): _brief(schema) for kind, schema in zip(kinds, schemas, strict=True)}
    chosen = views.chosen(view)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of, chosen)
    note = (_NATIVE if chosen is None else _IN_VIEW).format(view=view, default=default)
    own = {} if chosen is None else view_schemas.components(chosen)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shiftwork" if chosen is None else f"Shiftwork as {view} names it",
            "version": __version__,
            "description": f"{_DESCRIPTION}\n\n{note}",
            "x-default-view": default,
        },
        "tags": [{"name": group} for group in dict.fromkeys(endpoint.group for endpoint in endpoints)],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _used({**_brief(components), **own}, paths),
            **_share(paths),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Created with `shiftwork tokens create`. Not needed on loopback without --tokens.",
                }
            },
        },
    }


def _brief(schema: Any) -> Any:
    """The same schema in fewer words: `{"type": ["string", "null"]}` for a union, and no default that is null.

    Optional fields are not in `required`, so a default of null need not be stated.
    """
    if isinstance(schema, list):
        return [_brief(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _brief(part) for name, part in schema.items() if (name, part) != ("default", None)}
    match found.get("anyOf"):
        case [{"type": str(kind), **rest}, {"type": "null"}] if not {"enum", "const"} & rest.keys():
            del found["anyOf"]
            return {"type": [kind, "null"], **rest, **found}
    return found


def _share(paths: dict[str, Any]) -> dict[str, Any]:
    """Replace shared parameters and answers by references; returns the components."""
    operations = [operation for path in paths.values() for operation in path.values()]
    parameters, responses = _Shared("parameters"), _Shared("responses")
    often = Counter(repr(answer) for operation in operations for answer in operation["responses"].values())
    for operation in operations:
        operation["parameters"] = [parameters.reference(each["name"], each) for each in operation["parameters"]]
        operation["responses"] = {
            status: responses.reference(_name_of(status, each), each)
            if often[repr(each)] > 1 or not status.startswith(("2", "3"))
            else each
            for status, each in operation["responses"].items()
        }
    for path in paths.values():
        _lift(path)
    return {"parameters": parameters.named, "responses": responses.named}


def _name_of(status: str, answer: dict[str, Any]) -> str:
    """The name of a shared answer: its record, or its error status."""
    if not status.startswith(("2", "3")):
        return f"refused_{status}"
    record = next(iter(sorted(_references(answer))), status)
    return f"answer_{record}"


def _lift(path: dict[str, Any]) -> None:
    """Declare parameters common to all operations of a path once, for the path."""
    operations = list(path.values())
    common = [each for each in operations[0]["parameters"] if all(each in other["parameters"] for other in operations)]
    if len(operations) > 1 and common:
        path["parameters"] = common
        for operation in operations:
            operation["parameters"] = [each for each in operation["parameters"] if each not in common]


class _Shared:
    """Components of one kind, each once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._names: dict[str, str] = {}
        self.named: dict[str, Any] = {}

    def reference(self, wanted: str, component: dict[str, Any]) -> dict[str, Any]:
        key = wanted + repr(component)
        if key not in self._names:
            alike = sum(name.partition(".")[0] == wanted for name in self.named)
            self._names[key] = f"{wanted}.{alike + 1}" if alike else wanted
            self.named[self._names[key]] = component
        return {"$ref": f"#/components/{self._kind}/{self._names[key]}"}


def _used(components: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """The components that the paths reference, directly or indirectly."""
    found: set[str] = set()
    todo = _references(paths)
    while todo:
        found |= todo
        todo = set().union(*(_references(components[name]) for name in todo)) - found
    # Its title is the name of a component again.
    return {
        name: {key: value for key, value in schema.items() if key != "title"}
        for name, schema in components.items()
        if name in found
    }


def _references(schema: Any) -> set[str]:
    return set(re.findall(r"'#/components/schemas/(\w+)'", repr(schema)))


def _operation(endpoint: Endpoint, schema_of: dict[str, Any], view: View | None) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        **({"description": more} if (more := _beyond_summary(endpoint)) else {}),
        "tags": [endpoint.group],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint.query), *_headers(endpoint)],
        "responses": {**_answers(endpoint, schema_of, view), **_refusals(endpoint)},
    }
    if endpoint.scope is not None:
        operation["x-scope"] = endpoint.scope
    else:
        operation["security"] = []
    if endpoint.body is Raw:
        operation["requestBody"] = {"content": {"application/octet-stream": {"schema": _BYTES}}}
    elif endpoint.body is not None:
        schema = schema_of[repr(endpoint.body)]
        if endpoint.viewed_body and view is not None:
            schema = {**_ANY_OBJECT, "description": f"In the names of {view.name}."}
        operation["requestBody"] = {
            "content": {"application/json": {"schema": schema}},
            **({"required": True} if _required(endpoint.body, schema) else {}),
        }
    return operation


def _beyond_summary(endpoint: Endpoint) -> str:
    """An operation's description without its first line, which is the summary."""
    first, _, rest = endpoint.description.partition("\n\n")
    return rest if first.rstrip(".") == endpoint.summary else endpoint.description


def _required(body: Any, schema: dict[str, Any]) -> bool:
    """Whether a body is required: it is optional if every field has a default."""
    if "minProperties" in schema:
        return True
    try:
        msgspec.convert({}, body)
    except msgspec.ValidationError:
        return True
    return False


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PLACES[name],
            "schema": _NUMBER if name == "seq" else _NAME,
        }
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(query: type[Query]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(query, ref_template=_TEMPLATE)["$defs"][query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            **({"required": True} if name in schema.get("required", ()) else {}),
            "schema": _without_null(part),
        }
        for name, part in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a query's schema: values not given are left out."""
    kinds = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    kinds = [part for part in kinds if part.get("type") == "array"] or kinds  # a single value is a list of one
    rest = {name: value for name, value in schema.items() if name not in {"anyOf", "default"} or value is not None}
    rest.pop("anyOf", None)
    if "enum" in rest:
        rest["enum"] = [word for word in rest["enum"] if word is not None]
    return {**rest, **kinds[0]} if len(kinds) == 1 else rest


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    what = "Recorded in the events of this call, and returned."
    if endpoint.name == "claims_request":
        what += " The events of a claim with an Idempotency-Key have the key instead, by which the claim is found."
    headers = [("X-Request-Id", what, HEADER_TEXT)]
    if endpoint.changes and endpoint.scope is not None:
        what = "A call repeated with the same key within a day has no further effect."
        headers.append(("Idempotency-Key", what, HEADER_TEXT))
    if endpoint.changes and endpoint.scope not in {None, "work"}:
        what = "The actor in events. With a token, its name is the actor instead."
        headers.append(("X-Actor", what, HEADER_TEXT))
    if endpoint.name in CONDITIONAL:
        headers.append(
            ("If-Match", "The task's ETag or version: refused if it has changed since.", request_parsing.IF_MATCH)
        )
    if endpoint.answer is Raw:
        headers.append(("Range", "The range to send, such as `bytes=0-99`; by default, all.", ".*"))
    if endpoint.name in TAGGED:
        headers.append(("If-None-Match", "An ETag: the answer is 304 while nothing has changed.", ".*"))
    return [
        {"name": name, "in": "header", "description": what, "schema": {"type": "string", "pattern": f"^{pattern}$"}}
        for name, what, pattern in headers
    ]


def _answers(endpoint: Endpoint, schema_of: dict[str, Any], view: View | None) -> dict[str, Any]:
    described = {"description": HTTPStatus(endpoint.status).phrase}
    if endpoint.answer is None:
        return {str(endpoint.status): described}
    if endpoint.answer is Raw:
        return _bytes_answers(endpoint)
    if endpoint.answer is PlainText:
        return {str(endpoint.status): {**described, "content": {"text/plain": {"schema": {"type": "string"}}}}}
    schema = schema_of[repr(endpoint.answer)]
    if view is not None:
        schema = view_schemas.in_view(endpoint.answer if endpoint.viewed else None, view, _TEMPLATE)
    content = {"application/json": {"schema": schema}}
    if endpoint.path == "/api/events":
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answers = {str(endpoint.status): {**described, "content": content}}
    if endpoint.path == "/readyz":
        answers["503"] = {"description": "The server is not ready", "content": content}
    if endpoint.name in TAGGED:
        answers["304"] = {"description": "Nothing has changed since the ETag that was sent"}
    return answers


def _bytes_answers(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"*/*": {}}
    return {
        str(endpoint.status): {"description": HTTPStatus(endpoint.status).phrase, "content": content},
        "206": {"description": "The requested range", "content": content},
        "304": {"description": "The content still has the ETag sent"},
    }


TAGGED = {"get", "tasks_list", "dags_list", "dags_get", "artifacts_get"}
CONDITIONAL = {"tasks_update", "cancel", "dead_letters_review"}
_UNREADABLE: set[type[ShiftworkError]] = {InputError, BadText, TooLarge}
_UNTAKEN: set[type[ShiftworkError]] = {Malformed, UnsupportedEncoding, Overloaded}
"""Errors of a body that is unreadable, compressed, or incomplete when the server stops."""
_STORE: set[type[ShiftworkError]] = {StoreUnavailable, StoreLocked, OperationTimeout}


def refusals(endpoint: Endpoint) -> set[type[ShiftworkError]]:
    """Every error this endpoint can answer with."""
    return _common(endpoint) | set(endpoint.errors)


def _common(endpoint: Endpoint) -> set[type[ShiftworkError]]:
    """The errors that all operations of its kind can answer with."""
    if endpoint.scope is None:
        return _UNREADABLE | (_UNTAKEN if endpoint.changes else set())
    found = (
        _UNREADABLE | _STORE | {Unauthorized, Forbidden, NotFound, AmbiguousId}
    )  # the workspace of another token does not exist
    return found | _UNTAKEN | {IdempotencyKeyReused, StoreFull, StoreReadOnly} if endpoint.changes else found


def _refusals(endpoint: Endpoint) -> dict[str, Any]:
    """Its own errors by status, and as `default` those common to all."""
    common = _common(endpoint)
    by_status: dict[str, list[type[ShiftworkError]]] = {}
    for error in sorted(set(endpoint.errors) - common, key=lambda kind: kind.code):
        by_status.setdefault(str(problem.status_of(error)), []).append(error)
    by_status["default"] = sorted(common, key=lambda kind: kind.code)
    reference = {"$ref": _TEMPLATE.format(name="Problem")}
    return {
        status: {
            "description": _codes(errors) if status == "default" else _hints(errors),
            "content": {problem.MEDIA_TYPE: {"schema": reference}},
        }
        for status, errors in sorted(by_status.items())
    }


def _codes(errors: Iterable[type[ShiftworkError]]) -> str:
    return "Errors of any operation; `hint` says what to do: " + ", ".join(f"`{each.code}`" for each in errors)


def _hints(errors: Iterable[type[ShiftworkError]]) -> str:
    return "; ".join(f"`{error.code}`: {error.hint}" if error.hint else f"`{error.code}`" for error in errors)
