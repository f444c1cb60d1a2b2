"""Templates: JSON whose texts name parameters as `{{ name }}`, filled with values of the type each parameter has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from shiftwork.core.errors import InputError
from shiftwork.core.task import Fields, Name

_NAMED = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_SAMPLES: dict[str, Any] = {"string": "sample", "number": 1.5, "integer": 1, "boolean": True, "object": {}, "array": []}
MISSING = object()


class Parameter(Fields):
    """A value that a template needs: where it stands in what happened, or what it is otherwise."""

    type: Literal["string", "number", "integer", "boolean", "object", "array"] = "string"
    source: Name | None = msgspec.field(default=None, name="from")
    """Its place in what happened, such as `payload.pull_request.number`."""
    default: Any = msgspec.UNSET


def look_up(facts: Any, place: str) -> Any:
    """The value at a place such as `payload.commits.0.id`, or MISSING."""
    found = facts
    for step in place.split("."):
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isascii() and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return MISSING
    return found


def check_template(template: Any, parameters: Mapping[str, Parameter]) -> None:
    """Every parameter has a name and a value to expect, and no other is named."""
    for name, parameter in parameters.items():
        where = f"parameters.{name}"
        if _NAME.fullmatch(name) is None:
            raise InputError("the name of a parameter is letters, digits and _", where=where)
        if parameter.default is not msgspec.UNSET:
            _check_type(name, parameter, parameter.default)
        elif parameter.source is None:
            raise InputError("it has neither `from` nor `default`, so nothing could fill it", where=where)
    for name in sorted(_named_in(template) - parameters.keys()):
        raise InputError(f"{{{{ {name} }}}} is no parameter of this template", where="parameters")


def samples(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """A value for each parameter, to see whether what comes out is right."""
    return {
        name: _SAMPLES[parameter.type] if parameter.default is msgspec.UNSET else parameter.default
        for name, parameter in parameters.items()
    }


def values(parameters: Mapping[str, Parameter], facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter: as given, else as it stands in what happened, else its default."""
    for name in given:
        if name not in parameters:
            raise InputError(f"there is no parameter {name!r}", where=f"parameters.{name}")
    return {name: _value(name, parameter, facts, given) for name, parameter in parameters.items()}


def _value(name: str, parameter: Parameter, facts: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    found = given.get(name, MISSING)
    if found is MISSING and parameter.source is not None:
        found = look_up(facts, parameter.source)
    if found is MISSING and parameter.default is not msgspec.UNSET:
        return parameter.default
    if found is MISSING:
        raise InputError(f"what happened has no {parameter.source}", where=f"parameters.{name}")
    return _check_type(name, parameter, found)


def _check_type(name: str, parameter: Parameter, value: Any) -> Any:
    is_bool = isinstance(value, bool)
    if not isinstance(value, _KINDS[parameter.type]) or is_bool != (parameter.type == "boolean"):
        raise InputError(f"expected {parameter.type}, got {_shown(value)}", where=f"parameters.{name}")
    return value


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


def fill(template: Any, filling: Mapping[str, Any]) -> Any:
    """The template with its parameters replaced, once: what a value says is never read as a template."""
    if isinstance(template, str):
        return _fill_text(template, filling)
    if isinstance(template, Mapping):
        return {key: fill(value, filling) for key, value in template.items()}
    return [fill(value, filling) for value in template] if isinstance(template, list) else template


def _fill_text(text: str, filling: Mapping[str, Any]) -> Any:
    """A text that is one parameter and nothing else becomes the value with its type."""
    if whole := _NAMED.fullmatch(text):
        return filling[whole[1]]
    return _NAMED.sub(lambda match: _as_text(filling[match[1]]), text)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _named_in(template: Any) -> set[str]:
    if isinstance(template, str):
        return set(_NAMED.findall(template))
    inner = template.values() if isinstance(template, Mapping) else template if isinstance(template, list) else ()
    return {name for value in inner for name in _named_in(value)}
