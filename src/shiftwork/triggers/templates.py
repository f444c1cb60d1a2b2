"""Templates: JSON in which texts name parameters as `{{ name }}`, to be filled with values of the declared types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from shiftwork.model.errors import InputError, TooLarge
from shiftwork.model.task import Fields, Name

_NAMED = re.compile(r"\{\{([^{}]*)\}\}")
"""Blanks around the name are stripped later: a pattern that skips them would backtrack quadratically."""
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
MAX_FILLED = 8_388_608
"""The most characters of all values in a filled template; a short template can repeat a long value."""
_INDEX_DIGITS = 9


class Parameter(Fields):
    """A value that a template needs: its path in the cause of the firing, and its default."""

    type: Literal["string", "number", "integer", "boolean", "object", "array"] = "string"
    source: Name | None = msgspec.field(default=None, name="from")
    """Its path in the cause, such as `payload.pull_request.number`."""
    default: Any = msgspec.UNSET


def look_up(facts: Any, place: str) -> Any:
    """The value at a path such as `payload.commits.0.id`, or MISSING."""
    found = facts
    for step in place.split("."):
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and _is_index(step) and int(step) < len(found):
            found = found[int(step)]
        else:
            return MISSING
    return found


def _is_index(step: str) -> bool:
    """Whether a step is a list index; bounded, since Python refuses to parse thousands of digits."""
    return step.isascii() and step.isdigit() and len(step) <= _INDEX_DIGITS


def check_template(template: Any, parameters: Mapping[str, Parameter]) -> None:
    """Check that every parameter has a valid name and a source, and that every name in the template is declared."""
    for name, parameter in parameters.items():
        where = f"parameters.{name}"
        if _NAME.fullmatch(name) is None:
            raise InputError("the name of a parameter can only have letters, digits and _", where=where)
        if parameter.default is not msgspec.UNSET:
            _check_type(name, parameter, parameter.default)
        elif parameter.source is None:
            raise InputError("it needs `from` or `default`", where=where)
    for name in sorted(_named_in(template) - parameters.keys()):
        raise InputError(f"{{{{ {name} }}}} is not a parameter of this template", where="parameters")


def samples(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """A sample value for each parameter, to check the filled template."""
    return {
        name: _SAMPLES[parameter.type] if parameter.default is msgspec.UNSET else parameter.default
        for name, parameter in parameters.items()
    }


def values(parameters: Mapping[str, Parameter], facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each parameter: as given, otherwise from the cause, otherwise its default."""
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
        raise InputError(f"the cause of the firing has no {parameter.source}", where=f"parameters.{name}")
    return _check_type(name, parameter, found)


def _check_type(name: str, parameter: Parameter, value: Any) -> Any:
    is_bool = isinstance(value, bool)
    if not isinstance(value, _KINDS[parameter.type]) or is_bool != (parameter.type == "boolean"):
        raise InputError(f"expected {parameter.type}, got {_shown(value)}", where=f"parameters.{name}")
    return value


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"


class _Filling:
    """The values for one template, each converted to text once, and the remaining characters."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._texts: dict[str, str] = {}
        self._left = MAX_FILLED

    def value(self, name: str) -> Any:
        self.text(name)
        return self._values[name]

    def text(self, name: str) -> str:
        if name not in self._texts:
            value = self._values[name]
            self._texts[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        text = self._texts[name]
        self._left -= len(text)
        if self._left < 0:
            raise TooLarge(
                f"its values have more than {MAX_FILLED} characters in total",
                where=f"parameters.{name}",
                hint="Name the parameter less often, or pass a reference to a large value instead of the value.",
            )
        return text


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Fill the template once; values are never interpreted as templates."""
    return _fill(template, _Filling(values))


def _fill(template: Any, filling: _Filling) -> Any:
    if isinstance(template, str):
        return _fill_text(template, filling)
    if isinstance(template, Mapping):
        return {key: _fill(value, filling) for key, value in template.items()}
    return [_fill(value, filling) for value in template] if isinstance(template, list) else template


def _fill_text(text: str, filling: _Filling) -> Any:
    """Fill a text. A text that is only a parameter becomes its value, with its type."""
    if whole := _NAMED.fullmatch(text):
        return filling.value(whole[1].strip())
    return _NAMED.sub(lambda match: filling.text(match[1].strip()), text)


def _named_in(template: Any) -> set[str]:
    if isinstance(template, str):
        return {name.strip() for name in _NAMED.findall(template)}
    inner = template.values() if isinstance(template, Mapping) else template if isinstance(template, list) else ()
    return {name for value in inner for name in _named_in(value)}
