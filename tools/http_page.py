"""The page of HTTP operations, generated from the server's routes and its OpenAPI document."""

from __future__ import annotations

import textwrap
from typing import Any

from shiftwork.model.errors import ShiftworkError
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.openapi import document, refusals
from shiftwork.server.routes import ENDPOINTS

INTRODUCTION = """# HTTP

Every operation of `shiftwork serve`. `/openapi.json` describes the same operations with every type.
For headers, pages, views and errors, see [serve the queue over HTTP](../howto/serve.md).

*Scope* is the scope a [token](../howto/access.md) needs, if tokens are required; `-` is open to
everyone. *Takes* lists the fields of the body and, after `?`, of the query; **bold** ones are
required. Every operation takes `?workspace=` and `?view=`; those marked *view* have their own records
in the documents.

{always}

{changing}

*Errors* lists the others; see [all errors](errors.md).
"""
GROUP = """## {name}

| operation | scope | description | errors |
|---|---|---|---|
{rows}
"""


def http_page() -> str:
    """Return every operation by group, in the order of declaration."""
    reply = document(ENDPOINTS)
    read, written = _without_own_errors("GET"), _without_own_errors("POST")
    always = _filled(f"Every operation with a scope can fail with {_listed(read)}.")
    changing = _filled(f"Every change can also fail with {_listed(written - read)}.")
    parts = [INTRODUCTION.format(always=always, changing=changing)]
    for name in dict.fromkeys(endpoint.group for endpoint in ENDPOINTS):
        rows = [_row(endpoint, reply) for endpoint in ENDPOINTS if endpoint.group == name]
        parts.append(GROUP.format(name=name, rows="\n".join(rows)))
    return "\n".join(parts)


def _without_own_errors(method: str) -> set[type[ShiftworkError]]:
    """Return the errors that any operation of this method with a scope can raise."""
    (some, *_) = (endpoint for endpoint in ENDPOINTS if endpoint.method == method and endpoint.scope is not None)
    return refusals(some._replace(errors=()))


def _row(endpoint: Endpoint, data: dict[str, Any]) -> str:
    path = data["paths"][endpoint.path]
    operation = path[endpoint.method.lower()]
    operation = {**operation, "parameters": [*path.get("parameters", ()), *operation["parameters"]]}
    takes = " ".join(filter(None, (_fields(operation, data), _query(operation, data))))
    what = " ".join(endpoint.description.split()) + (" *view*" if endpoint.viewed else "")
    own = set(endpoint.errors) - refusals(endpoint._replace(errors=()))
    call, scope = f"`{endpoint.method} {endpoint.path}`", endpoint.scope or "-"
    if takes:
        what += f"<br>*takes* {takes}"
    return f"| {call} | {scope} | {what} | {_listed(own) or '-'} |"


def _fields(operation: dict[str, Any], data: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/octet-stream" in content:
        return "bytes"
    schema = _struct(content.get("application/json", {}).get("schema", {}), data["components"]["schemas"])
    return _names(list(schema.get("properties", {})), schema.get("required", []))


def _struct(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return the first object with fields that a schema leads to."""
    if "$ref" in schema:
        return _struct(components[schema["$ref"].rpartition("/")[2]], components)
    if "properties" in schema:
        return schema
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return next((found for part in inner if (found := _struct(part, components))), {})


def _query(operation: dict[str, Any], data: dict[str, Any]) -> str:
    shared = data["components"]["parameters"]
    parameters = [shared[each["$ref"].rpartition("/")[2]] for each in operation["parameters"]]
    own = [each for each in parameters if each["in"] == "query" and each["name"] not in {"workspace", "view"}]
    names = _names([each["name"] for each in own], [each["name"] for each in own if each.get("required")])
    return f"?{names}" if names else ""


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _names(names: list[str], required: list[str]) -> str:
    return ", ".join(f"**`{name}`**" if name in required else f"`{name}`" for name in names)


def _listed(errors: set[type[ShiftworkError]]) -> str:
    return ", ".join(f"`{code}`" for code in sorted(kind.code for kind in errors))
