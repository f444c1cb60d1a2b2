"""Validates data against a JSON Schema that a caller wrote, in a bounded number of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jsonschema_rs
import msgspec

from shiftwork.validation import patterns
from shiftwork.validation.expansion import DataLocation, Expansion, UnusableSchema, expand

MAX_STEPS = 2_000_000
"""Steps of one validation, 15 ns each: the process and a transaction wait while it continues."""
MAX_STEPS_TOGETHER = 4 * MAX_STEPS
"""The most validation steps in one transaction, which blocks a database with one writer."""
MAX_ERRORS = 5
_UNIQUE_STEPS = 20
_ERROR_STEPS = 700
_ERROR_SHOWN_STEPS = 60
_ERROR_BYTE_STEPS = 2
"""The library collects all errors before it hands out the first, each with its `enum` or `const` and its data."""
_MAX_ERROR_STEPS = 4_000_000
_MAX_VALUES = 50_000
"""The most values examined one by one to count the steps, a microsecond each."""
_LOOK_STEPS = 60
"""For each byte of a schema, to look it through and compile it."""
_NARROWED = 8
"""How many levels of the data are searched for the wrong part."""


class Violation(NamedTuple):
    """One error in the data: where, and what."""

    path: tuple[str | int, ...]
    what: str


class Schema:
    """A schema that is safe to validate with."""

    def __init__(self, text: bytes) -> None:
        self._schema = msgspec.json.decode(text)
        self._shown = _largest_shown(self._schema)
        self._expansion = expand(self._schema)
        self._options = jsonschema_rs.RegexOptions(size_limit=patterns.SIZES[-1][0])
        self._validator = self._compiled(jsonschema_rs.validator_for)
        self._parts: Mapping[str, jsonschema_rs.Validator] | None = None

    def _compiled(self, compile_: Any) -> Any:
        options = {"retriever": _refuse, "pattern_options": self._options, "keywords": {"uniqueItems": _Unique}}
        return compile_(self._schema, **options)

    def steps(self, data: Any) -> float:
        """The most steps of validating this data; validation beyond the limit is not started."""
        steps = _steps(self._expansion, data)
        return steps if steps <= MAX_STEPS else 1

    def violations(self, data: Any) -> list[Violation]:
        """The errors in the data; empty if it is valid."""
        steps = _steps(self._expansion, data)
        if steps > MAX_STEPS:
            return [Violation((), f"too large for its schema: checking it would take more than {MAX_STEPS} steps")]
        if self._validator.is_valid(data):
            return []
        return self._errors(data, steps)

    def _errors(self, data: Any, steps: float) -> list[Violation]:
        path: tuple[str | int, ...] = ()
        pointer = "#"
        if not self._is_listed(data):
            path, pointer, data = self._narrow(data, int(min(_NARROWED, 2 * MAX_STEPS / max(steps, 1))))
            if not self._is_listed(data):
                return [Violation(path, "does not match the schema, and is too large to locate the error")]
        validator = self._validator if pointer == "#" else self._part(pointer)
        found = []
        for error in validator.iter_errors(data):
            found.append(Violation((*path, *error.instance_path), error.message))
            if len(found) == MAX_ERRORS:
                break
        return found or [Violation(path, "does not match the schema")]

    def _is_listed(self, data: Any) -> bool:
        """Whether all possible errors can be collected in time."""
        extent = Extent.of(data)
        each = _ERROR_STEPS + _ERROR_SHOWN_STEPS * self._shown + _ERROR_BYTE_STEPS * extent.bytes
        if extent.values * each > _MAX_ERROR_STEPS:
            return False
        weights = self._expansion.at(_depth(data))
        return weights is not None and extent.values * weights.evaluations * each <= _MAX_ERROR_STEPS

    def _narrow(self, data: Any, levels: int) -> tuple[tuple[str | int, ...], str, Any]:
        """The smallest part of the data that is wrong by itself, by the keywords that go into it one by one."""
        path: tuple[str | int, ...] = ()
        pointer = "#"
        for _ in range(levels):
            pointer, schema = self._behind(pointer)
            for step, inner_pointer, inner in _inside(schema, pointer, data):
                if not self._part(inner_pointer).is_valid(inner):
                    path, pointer, data = (*path, step), inner_pointer, inner
                    break
            else:
                break
        return path, pointer, data

    def _behind(self, pointer: str) -> tuple[str, Any]:
        """The schema at a place, or the one that it just refers to."""
        schema = self._at(pointer)
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(ref, str) and ref.startswith("#/") and isinstance(self._at(ref), dict):
            return ref, self._at(ref)
        return pointer, schema

    def _at(self, pointer: str) -> Any:
        found = self._schema
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _part(self, pointer: str) -> jsonschema_rs.Validator:
        if self._parts is None:
            self._parts = self._compiled(jsonschema_rs.validator_map_for)
        return self._parts[pointer]


def _largest_shown(schema: Any) -> int:
    """Bytes of the largest `enum` or `const`, which are in the errors about them."""
    largest, todo = 0, [schema]
    while todo:
        inner = todo.pop()
        if isinstance(inner, dict):
            shown = [inner[keyword] for keyword in ("enum", "const") if keyword in inner]
            largest = max([largest, *(len(msgspec.json.encode(value)) for value in shown)])
            todo.extend(value for value in inner.values() if isinstance(value, dict | list))
        elif isinstance(inner, list):
            todo.extend(value for value in inner if isinstance(value, dict | list))
    return largest


def _inside(schema: Any, pointer: str, data: Any) -> Iterator[tuple[str | int, str, Any]]:
    """The parts of the data with the place of the one schema that each of them must fit."""
    if not isinstance(schema, dict):
        return
    if isinstance(data, dict) and isinstance(properties := schema.get("properties"), dict):
        for name in properties.keys() & data.keys():
            yield name, f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}", data[name]
    if isinstance(data, list) and isinstance(schema.get("items"), dict):
        first = len(schema["prefixItems"]) if isinstance(schema.get("prefixItems"), list) else 0
        for place, item in enumerate(data[first:], first):
            yield place, f"{pointer}/items", item


class Extent(NamedTuple):
    """The extent of data, as far as validation time depends on it."""

    objects: int
    lists: int
    others: int
    bytes: int

    @classmethod
    def of(cls, data: Any) -> Extent:
        """Counted in its JSON text: a value is the first, or follows a comma or the beginning of a list or object."""
        text = msgspec.json.encode(data)
        return cls(text.count(b"{"), text.count(b"["), 1 + text.count(b","), len(text))

    @property
    def values(self) -> int:
        return self.objects + self.lists + self.others


def _steps(expansion: Expansion, data: Any) -> float:
    """The most steps of validation; infinite if unknown or beyond the limit."""
    extent = Extent.of(data)
    weights = expansion.levels[-1]
    if expansion.closed and not weights.unique:
        each = extent.objects * weights.objects + extent.lists * weights.lists + extent.others * weights.others
        if (steps := each + extent.bytes * weights.byte) <= MAX_STEPS:
            return steps
    return _exact_steps(expansion.start, data) if extent.values <= _MAX_VALUES else float("inf")


def _exact_steps(start: DataLocation | None, data: Any) -> float:
    """The same, counted at each place of the data."""
    steps = 0.0
    todo = [(data, start)]
    while todo:
        value, place = todo.pop()
        if place is None:
            continue
        if isinstance(value, dict | list) and not place.followed:
            return float("inf")
        steps += _steps_at(place, value)
        if steps > MAX_STEPS:
            return float("inf")
        if isinstance(value, dict):
            todo.extend((inner, place.named.get(name, place.member)) for name, inner in value.items())
        elif isinstance(value, list):
            first = len(place.positions)
            todo.extend(zip(value[:first], place.positions, strict=False))
            todo.extend((inner, place.item) for inner in value[first:])
    return steps


def _steps_at(place: DataLocation, value: Any) -> float:
    """The steps at one place itself."""
    weights = place.weights
    if isinstance(value, dict):
        keys = place.keys
        each = sum(keys.others + keys.byte * len(name.encode()) for name in value) if keys.others else 0
        return weights.objects + each
    if isinstance(value, list):
        inside = Extent.of(value).values if weights.unique else 0
        return weights.lists + weights.unique * _UNIQUE_STEPS * inside
    size = len(value.encode()) if isinstance(value, str) else 8
    return weights.others + weights.byte * size


def _depth(data: Any) -> int:
    deepest, level = 0, [data]
    while level:
        deepest += 1
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return deepest


class _Unique:
    """`uniqueItems` by hashes. The library compares each two numbers beyond 64 bits, in long arithmetic."""

    def __init__(self, _parent: Any, value: Any, _path: Any) -> None:
        self._on = value

    def validate(self, data: Any) -> None:
        if self._on is True and isinstance(data, list) and len({_frozen(item) for item in data}) < len(data):
            raise ValueError("has non-unique elements")


def _frozen(value: Any) -> Any:
    """A value as JSON Schema compares it: 1 is 1.0, and true is not 1."""
    if isinstance(value, dict):
        return frozenset((name, _frozen(inner)) for name, inner in value.items()), dict
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value), list
    return (value, bool) if isinstance(value, bool) else value


def _refuse(uri: str) -> NoReturn:
    """By default the library would fetch addresses and read files that a submitter names."""
    raise ValueError(f"references outside the schema are not followed: {uri}")


def steps_of(text: bytes, data: Any) -> float:
    """The most steps to validate the data, plus analysing the schema if that is not cached."""
    before = _known.cache_info().misses
    found = _known(text)
    looked_through = _LOOK_STEPS * len(text) if _known.cache_info().misses > before else 0
    return looked_through + (1 if isinstance(found, UnusableSchema) else found.steps(data))


def compiled(text: bytes) -> Schema:
    """The schema of a JSON text; Unusable for one that is not safe or not a schema."""
    found = _known(text)
    if isinstance(found, UnusableSchema):
        raise found
    return found


@lru_cache(maxsize=512)
def _known(text: bytes) -> Schema | UnusableSchema:
    """Cached also for unusable schemas, which may be stored from before they were refused."""
    try:
        return Schema(text)
    except UnusableSchema as error:
        return error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = str(getattr(error, "message", error)).splitlines()[0]
        return UnusableSchema(what, "Correct the schema; any JSON Schema validator shows where it is wrong.")
