"""Buttons for people: the choices of a question, or approve and reject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

MAX_CHOICES = 20
MAX_LABEL = 75
"""The most characters on a Slack button."""

MAX_VALUE = 2000
"""The most characters in the value of a Slack button."""


class Pressed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A button's value, which Slack sends back in a signed request."""

    task: str
    decision: str | None = None
    """`approve` or `reject`."""
    revision: str | None = None
    question: str | None = None
    """The name of the question in its task: another may be open when the button is pressed."""
    value: Any = None


class Button(NamedTuple):
    label: str
    pressed: Pressed
    style: str | None = None


def of_request(task_id: str, about: Mapping[str, Any]) -> list[Button]:
    """The buttons for a question or approval; none if it needs a form."""
    if about.get("revision") is not None:
        asked: dict[str, Any] = {"task": task_id, "revision": about["revision"]}
        return [
            Button("Approve", Pressed(decision="approve", **asked), "primary"),
            Button("Reject", Pressed(decision="reject", **asked), "danger"),
        ]
    found = [
        Button(label[:MAX_LABEL], Pressed(task_id, question=about.get("name"), value=value))
        for label, value in choices(about.get("schema"))
    ]
    fits = all(len(msgspec.json.encode(each.pressed)) <= MAX_VALUE for each in found)
    return found if fits and len(found) <= MAX_CHOICES else []


def choices(schema: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """The answers that a schema allows, each with its label; none if it allows more than a few."""
    if not isinstance(schema, Mapping):
        return []
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" and isinstance(properties, Mapping) and len(properties) == 1:
        ((name, inner),) = properties.items()
        return [(label, {name: value}) for label, value in _of_value(inner)] if required == [name] else []
    return _of_value(schema)


def _of_value(schema: Any) -> list[tuple[str, Any]]:
    if not isinstance(schema, Mapping):
        return []
    if schema.get("type") == "boolean":
        return [("Yes", True), ("No", False)]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return [(_label(value), value) for value in values] if isinstance(values, Sequence) else []


def _label(value: Any) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
