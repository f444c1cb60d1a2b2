"""The page of HTTP operations, made from the doors of the server and the OpenAPI document that it serves."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import ShiftworkError
from shiftwork.server.door import Door
from shiftwork.server.openapi import document, refusals
from shiftwork.server.routes import DOORS

INTRODUCTION = """# HTTP

Every operation of `shiftwork serve`; `/openapi.json` says the same with every type. How headers, pages, views and
errors work stands in [serve the queue over HTTP](../howto/serve.md).

*Scope* is what a [token](../howto/access.md) must have where tokens are asked for; `-` lets everybody in. *Takes* are
the fields of the body and, after `?`, of the query; **bold** ones are required. Every operation takes `?workspace=`
and `?view=`; those marked *view* have records of their own in the documents.

An operation with a scope may be refused with {always}, and one that changes something with {changing} besides. *Errors*
are what else it may be refused with; [all of them](errors.md).
"""
GROUP = """## {name}

| operation | scope | what it does | errors |
|---|---|---|---|
{rows}
"""


def http_page() -> str:
    """Every operation by its group, in the order in which the server declares them."""
    told = document(DOORS)
    read, written = _without_own_errors("GET"), _without_own_errors("POST")
    parts = [INTRODUCTION.format(always=_listed(read), changing=_listed(written - read))]
    for name in dict.fromkeys(door.group for door in DOORS):
        rows = [_row(door, told) for door in DOORS if door.group == name]
        parts.append(GROUP.format(name=name, rows="\n".join(rows)))
    return "\n".join(parts)


def _without_own_errors(method: str) -> set[type[ShiftworkError]]:
    """What any operation of this method and some scope can be refused with."""
    (some, *_) = (door for door in DOORS if door.method == method and door.scope is not None)
    return refusals(some._replace(errors=()))


def _row(door: Door, told: dict[str, Any]) -> str:
    operation = told["paths"][door.path][door.method.lower()]
    takes = " ".join(filter(None, (_fields(operation, told), _query(operation))))
    what = " ".join(door.description.split()) + (" *view*" if door.viewed else "")
    own = set(door.errors) - refusals(door._replace(errors=()))
    return (
        f"| `{door.method} {door.path}` | {door.scope or '-'} | {what}{f'<br>*takes* {takes}' if takes else ''} "
        f"| {_listed(own) or '-'} |"
    )


def _fields(operation: dict[str, Any], told: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/octet-stream" in content:
        return "bytes"
    schema = _struct(content.get("application/json", {}).get("schema", {}), told["components"]["schemas"])
    return _names(list(schema.get("properties", {})), schema.get("required", []))


def _struct(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """The first object with fields of its own that a schema leads to."""
    if "$ref" in schema:
        return _struct(components[schema["$ref"].rpartition("/")[2]], components)
    if "properties" in schema:
        return schema
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return next((found for part in inner if (found := _struct(part, components))), {})


def _query(operation: dict[str, Any]) -> str:
    own = [
        each for each in operation["parameters"] if each["in"] == "query" and each["name"] not in {"workspace", "view"}
    ]
    names = _names([each["name"] for each in own], [each["name"] for each in own if each["required"]])
    return f"?{names}" if names else ""


def _names(names: list[str], required: list[str]) -> str:
    return ", ".join(f"**`{name}`**" if name in required else f"`{name}`" for name in names)


def _listed(errors: set[type[ShiftworkError]]) -> str:
    return ", ".join(f"`{code}`" for code in sorted(kind.code for kind in errors))
