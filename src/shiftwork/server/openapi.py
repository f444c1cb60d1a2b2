"""The OpenAPI 3.1 document, made from the doors: what it says is what is read, answered and refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shiftwork.core.errors import (
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
from shiftwork.server import documents, reading
from shiftwork.server.door import Door, PlainText, Query, Raw
from shiftwork.views import NATIVE
from shiftwork.wire import problem

_DESCRIPTION = """A durable task queue for fleets of AI agents.

Times are seconds since 1970 (UTC). A body is read as JSON in UTF-8 whatever its Content-Type says, and refused with
a Content-Encoding; of a name that stands twice in an object the last counts; a field or a parameter that is not known
is refused. No text may hold a NUL or a lone surrogate. An id in a path may be any text, percent-encoded, also with a
slash (`%2F`). Every refusal is `application/problem+json` with a stable `code`."""
_IN_VIEWS = """Every call may name a `view`: `native` for the names described here, or one of the documents that
Shiftwork serves, whose names, states, ids and ISO 8601 times then count. Without it this server answers in the view
`{view}`."""
_TEMPLATE = "#/components/schemas/{name}"
_ANY_OBJECT = {"type": "object"}
_BYTES = {"type": "string", "format": "binary"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_NUMBER = {"type": "integer", "minimum": 1, "maximum": 2**62}
_PLACES = {
    "task_id": "The task's id in any of its forms, or the name its submitter gave it.",
    "dag_id": "The DAG's id.",
    "agent_id": "The agent's id.",
    "runtime_id": "The runtime's id.",
    "issue_id": "The issue's id.",
    "token_id": "The token's id.",
    "tag": "The tag.",
    "artifact_id": "The artifact's id, `artifact:sha256-…`.",
    "seq": "The alert's number.",
    "sink": "The sink's name.",
    "delivery_id": "The delivery's id, `msg_…`.",
    "name": "The trigger's name.",
    "type": "The type of the tasks.",
    "workspace": "The workspace.",
    "key": "What it is about: `provider:NAME`, `account:NAME`, `model:NAME` or `type:NAME`, several joined by commas.",
}


def document(doors: Sequence[Door], view: str = NATIVE) -> dict[str, Any]:
    """The whole document, of a server that answers in this view unless another is named."""
    from shiftwork import __version__  # noqa: PLC0415  # the package is half made while this module is loaded

    said = [kind for door in doors for kind in (door.body, door.answer)]
    kinds = [problem.Problem, *(kind for kind in said if kind not in {None, Raw, PlainText})]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    schema_of = {repr(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        paths.setdefault(door.path, {})[door.method.lower()] = _operation(door, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shiftwork",
            "version": __version__,
            "description": f"{_DESCRIPTION}\n\n{_IN_VIEWS.format(view=view)}",
            "x-default-view": view,
        },
        "tags": [{"name": group} for group in dict.fromkeys(door.group for door in doors)],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**components, **documents.components()},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made by `shiftwork tokens create`. Not needed on loopback without --tokens.",
                }
            },
        },
    }


def _operation(door: Door, schema_of: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": door.name,
        "summary": door.summary,
        "description": door.description,
        "tags": [door.group],
        "parameters": [*_path_parameters(door), *_query_parameters(door.query), *_headers(door)],
        "responses": {**_answers(door, schema_of), **_refusals(door)},
    }
    if door.scope is not None:
        told["x-scope"] = door.scope
    else:
        told["security"] = []
    if door.body is Raw:
        told["requestBody"] = {"content": {"application/octet-stream": {"schema": _BYTES}}, "required": False}
    elif door.body is not None:
        schema = schema_of[repr(door.body)]
        if door.viewed_body:
            schema = {"anyOf": [schema, {**_ANY_OBJECT, "description": "With `view`: in the names of that document."}]}
        told["requestBody"] = {
            "content": {"application/json": {"schema": schema}},
            "required": _required(door.body, schema),
        }
    return told


def _required(body: Any, schema: dict[str, Any]) -> bool:
    """A body whose every field has a default may be left out."""
    if "minProperties" in schema:
        return True
    try:
        msgspec.convert({}, body)
    except msgspec.ValidationError:
        return True
    return False


def _path_parameters(door: Door) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PLACES[name],
            "schema": _NUMBER if name == "seq" else _NAME,
        }
        for name in re.findall(r"{(\w+)}", door.path)
    ]


def _query_parameters(query: type[Query]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(query, ref_template=_TEMPLATE)["$defs"][query.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": _without_null(part)}
        for name, part in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what is not given is left out."""
    kinds = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in {"anyOf", "default"} or value is not None}
    rest.pop("anyOf", None)
    if "enum" in rest:
        rest["enum"] = [word for word in rest["enum"] if word is not None]
    return {**rest, **kinds[0]} if len(kinds) == 1 else rest


def _headers(door: Door) -> list[dict[str, Any]]:
    what = "Stands in the events this call causes, and in the answer."
    if door.name == "claim":
        what += (
            " In the events of a claim with an Idempotency-Key the key stands there instead: the claim is found by it."
        )
    told = [("X-Request-Id", what, reading.HEADER_TEXT)]
    if door.changes and door.scope is not None:
        what = "A call repeated with the same key within a day has no second effect."
        told.append(("Idempotency-Key", what, reading.HEADER_TEXT))
    if door.changes and door.scope not in {None, "work"}:
        what = "Who acts, as the events shall name them. A token has its own name."
        told.append(("X-Actor", what, reading.HEADER_TEXT))
    if door.name in CONDITIONAL:
        told.append(("If-Match", "The task's ETag or version: refused if it has changed since.", reading.IF_MATCH))
    if door.answer is Raw:
        told.append(("Range", "The part to send, such as `bytes=0-99`; without it, all.", ".*"))
    if door.name in TAGGED:
        told.append(("If-None-Match", "An ETag: answered with 304 while nothing has changed.", ".*"))
    return [
        {"name": name, "in": "header", "description": what, "schema": {"type": "string", "pattern": f"^{pattern}$"}}
        for name, what, pattern in told
    ]


def _answers(door: Door, schema_of: dict[str, Any]) -> dict[str, Any]:
    described = {"description": door.summary}
    if door.answer is None:
        return {str(door.status): described}
    if door.answer is Raw:
        return _bytes_answers(door)
    if door.answer is PlainText:
        return {str(door.status): {**described, "content": {"text/plain": {"schema": {"type": "string"}}}}}
    schema = schema_of[repr(door.answer)]
    schema = {"anyOf": [schema, *documents.in_each(door.answer if door.viewed else None, _TEMPLATE)]}
    content = {"application/json": {"schema": schema}}
    if door.path == "/api/events":
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answers = {str(door.status): {**described, "content": content}}
    if door.path == "/readyz":
        answers["503"] = {"description": "It cannot serve now", "content": content}
    if door.name in TAGGED:
        answers["304"] = {"description": "Nothing has changed since the ETag that was sent"}
    return answers


def _bytes_answers(door: Door) -> dict[str, Any]:
    content: dict[str, Any] = {"*/*": {}}
    return {
        str(door.status): {"description": door.summary, "content": content},
        "206": {"description": "The part that was asked for", "content": content},
        "304": {"description": "It is the content whose ETag was sent"},
    }


TAGGED = {"list_tasks", "get_task", "list_dags", "get_dag", "get_artifact"}
CONDITIONAL = {"update", "cancel"}
_UNREADABLE: set[type[ShiftworkError]] = {InputError, BadText, TooLarge}
_UNTAKEN: set[type[ShiftworkError]] = {Malformed, UnsupportedEncoding, Overloaded}
"""What a body is refused with that cannot be read, is packed, or does not come before the server stops."""
_STORE: set[type[ShiftworkError]] = {StoreUnavailable, StoreLocked, OperationTimeout}


def refusals(door: Door) -> set[type[ShiftworkError]]:
    """Every error this door can answer with."""
    if door.scope is None:
        return _UNREADABLE | set(door.errors) | (_UNTAKEN if door.changes else set())
    always = _UNREADABLE | _STORE | {Unauthorized, Forbidden}
    found = always | set(door.errors) | {NotFound}  # the workspace that a token does not belong to
    return found | _UNTAKEN | {IdempotencyKeyReused, StoreFull, StoreReadOnly} if door.changes else found


def _refusals(door: Door) -> dict[str, Any]:
    by_status: dict[int, list[type[ShiftworkError]]] = {}
    for error in sorted(refusals(door), key=lambda kind: kind.code):
        by_status.setdefault(problem.status_of(error), []).append(error)
    reference = {"$ref": _TEMPLATE.format(name="Problem")}
    return {
        str(status): {
            "description": _listed(errors),
            "content": {problem.MEDIA_TYPE: {"schema": reference}},
        }
        for status, errors in sorted(by_status.items())
        if not (door.path == "/readyz" and status == 503)
    }


def _listed(errors: Iterable[type[ShiftworkError]]) -> str:
    return "; ".join(f"`{error.code}`: {error.mend}" for error in errors)
