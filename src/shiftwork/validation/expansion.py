"""Bounds the cost of validating with a JSON Schema: its references and alternatives, expanded.

A validator evaluates each alternative at each place of the data, and follows a reference at every occurrence: forty
definitions that name the next one twice mean 2^40 evaluations of a number. The sums here are upper bounds, computed
without data: how often schemas are evaluated at one place, by its depth in the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.validation import patterns
from shiftwork.validation.schema_references import LISTS, MAPS, SINGLE, References, Unresolved

MAX_EVALUATIONS = 10_000
"""The most evaluations of schemas that one evaluation at a place of the data may cause there."""
MAX_BELOW = 1_000_000
"""The same for places inside: recursion with alternatives multiplies them with each level, which data need not have."""
MAX_COMPILED = 1_048_576
"""Bytes that the patterns of one schema have together when compiled."""
MAX_CLASSES = 2 * patterns.MAX_CLASSES**2
"""The squares of how often `\\w`, `\\d` and `\\s` are in each of them, together."""
MAX_CHAIN = 60
"""References and alternatives that may follow each other at one place of the data."""
MAX_DATA = 64
MIN_LEVELS = 4
"""A schema that cannot be analysed to this depth of the data is refused."""
_WORK = 30_000
"""The most steps of this analysis; ordinary schemas take a few per part."""
_AGAIN = 3
"""How often `unevaluatedProperties` and `unevaluatedItems` have the schemas at their own place evaluated."""


class UnusableSchema(ValueError):
    """A schema whose validation could take too long; `fix` says how to rewrite it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


class Weights(NamedTuple):
    """Steps of one evaluation, about 15 ns each: at an object, a list, anything else, and for each of their bytes."""

    objects: float = 0
    lists: float = 0
    others: float = 0
    byte: float = 0
    unique: float = 0
    """Evaluations of `uniqueItems`, which look at everything inside."""
    evaluations: float = 0

    def most(self, other: Weights) -> Weights:
        return Weights(*map(max, self, other))


def total(weighed: Iterable[tuple[Weights, float]]) -> Weights:
    """The sum of weights, each this many times."""
    objects = lists = others = byte = unique = evaluations = 0.0
    for each, times in weighed:
        objects += each.objects * times
        lists += each.lists * times
        others += each.others * times
        byte += each.byte * times
        unique += each.unique * times
        evaluations += each.evaluations * times
    return Weights(objects, lists, others, byte, unique, evaluations)


class DataLocation:
    """A kind of place in the data: what evaluating the schemas there takes, and the kinds of places inside it.

    None stands for places at which nothing is evaluated.
    """

    def __init__(self, weights: Weights, keys: Weights) -> None:
        self.weights, self.keys = weights, keys
        self.named: dict[str, DataLocation | None] = {}
        self.member: DataLocation | None = None
        self.positions: list[DataLocation | None] = []
        self.item: DataLocation | None = None
        self.followed = False
        """Whether the places inside are known."""


class Expansion(NamedTuple):
    """The cost of one place of the data, by its depth; the last entry holds for all deeper ones if `closed`."""

    levels: list[Weights]
    closed: bool
    start: DataLocation | None

    def at(self, depth: int) -> Weights | None:
        """The most that any place up to this depth takes; None where that was not followed to its end."""
        if depth <= len(self.levels):
            return self.levels[max(depth, 1) - 1]
        return self.levels[-1] if self.closed else None


class _Part:
    """One schema: the cost of evaluating it, and which others it evaluates, where."""

    def __init__(self, schema: Any, references: References) -> None:
        self.schema = schema
        self.weights = Weights(1, 1, 1, evaluations=1)
        self.key_weights = Weights()
        self.here: list[tuple[Any, int]] = []
        self.named: dict[str, list[Any]] = {}
        self.members: list[Any] = []
        self.keys: list[Any] = []
        self.positions: list[Any] = []
        self.items: list[tuple[Any, int]] = []
        if isinstance(schema, dict):
            self._read(schema, references)

    def _read(self, schema: dict[str, Any], references: References) -> None:
        words = 1 + len(schema)
        self.weights = Weights(words, words, words, evaluations=1)
        if not _WEIGHED.isdisjoint(schema):
            self.weights = total((each, 1) for each in (self.weights, *_weigh(schema)))
        if _APPLYING.isdisjoint(schema):
            return
        again = _AGAIN if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        self.here = [(target, again) for target in (*references.targets(schema), *_in_place(schema))]
        for name, inner in _map(schema, "properties").items():
            self.named.setdefault(name, []).append(inner)
        by_pattern = _map(schema, "patternProperties")
        self.members = [*by_pattern.values(), *_single(schema, "additionalProperties", "unevaluatedProperties")]
        self.keys = [*_single(schema, "propertyNames")]
        self.key_weights = total((_pattern_weights(pattern), 1) for pattern in by_pattern)
        self.positions = [*_list(schema, "prefixItems"), *_list(schema, "items")]
        self.items = [(inner, 1) for inner in _single(schema, "items", "additionalItems", "unevaluatedItems")]
        self.items += [(inner, again) for inner in _single(schema, "contains")]


def expand(schema: Any) -> Expansion:
    """The cost of the schema; Unusable if it is too high or unbounded."""
    try:
        return _Walk(schema).expansion()
    except Unresolved as error:
        raise UnusableSchema(
            f"the reference {str(error)[:200]!r} leads nowhere in the schema",
            "Put the target into `$defs` of the schema itself; nothing outside it is fetched.",
        ) from None


State = dict[int, int]
"""The schemas that are evaluated at one place, and how often each."""


class _Walk:
    """Follows a schema into the data as far as there are places that are treated differently."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._references = References(schema)
        self._parts: dict[int, _Part] = {}
        self._closures: dict[int, State] = {}
        self._open: set[int] = set()
        self._alike: dict[bytes, Any] = {}
        self._places: dict[frozenset[tuple[int, int]], DataLocation] = {}
        self._states: dict[DataLocation, State] = {}
        self._left = _WORK
        self._compiled = self._classes = 0

    def expansion(self) -> Expansion:
        start = self._place(self._closure(self._root))
        levels: list[Weights] = []
        worst, level = Weights(), [] if start is None else [start]
        try:
            while level and len(levels) < MAX_DATA:
                worst, level = self._next(worst, level)
                levels.append(worst)
        except _TooMuch:
            if len(levels) < MIN_LEVELS:
                raise _too_much() from None
            return Expansion(levels, False, start)  # noqa: FBT003  # not closed
        return Expansion(levels, not level, start)

    def _place(self, state: State) -> DataLocation | None:
        """The place at which these are evaluated, always the same object; None if there are none."""
        mark = frozenset(state.items())
        if not mark:
            return None
        if (known := self._places.get(mark)) is None:
            known = self._places[mark] = DataLocation(self._total(state), self._keys(state))
            self._states[known] = state
        return known

    def _next(self, worst: Weights, level: list[DataLocation]) -> tuple[Weights, list[DataLocation]]:
        """The highest cost of a place at this level, and the places below it not visited yet."""
        below: dict[DataLocation, None] = {}
        keys = Weights()
        for place in level:
            worst, keys = worst.most(place.weights), keys.most(place.keys)
            self._follow(place)
            inside = (place.member, place.item, *place.named.values(), *place.positions)
            below.update(dict.fromkeys(inner for inner in inside if inner is not None and not inner.followed))
        return total([(worst, 1), (keys, 1)]), list(below)

    def _total(self, state: State) -> Weights:
        return total((self._parts[key].weights, times) for key, times in state.items())

    def _keys(self, state: State) -> Weights:
        """What the names of members take, which are texts by themselves."""
        found: list[tuple[Weights, float]] = []
        for key, times in state.items():
            part = self._parts[key]
            found.append((part.key_weights, times))
            found.extend((self._total(self._closure(inner)), times) for inner in part.keys)
        names = total(found)
        return names._replace(objects=names.others, lists=names.others)

    def _follow(self, place: DataLocation) -> None:
        """What is evaluated at each kind of place directly inside: members by their names, items by their position."""
        parts = [(self._parts[key], times) for key, times in self._states[place].items()]
        members = [(inner, times) for part, times in parts for inner in part.members]
        place.member = self._place(self._sum(members))
        for name in {name for part, _ in parts for name in part.named}:
            own = [(inner, times) for part, times in parts for inner in part.named.get(name, ())]
            place.named[name] = self._place(self._sum(own + members))
        items = [(inner, times * more) for part, times in parts for inner, more in part.items]
        place.item = self._place(self._sum(items))
        for position in range(max((len(part.positions) for part, _ in parts), default=0)):
            own = [(part.positions[position], times) for part, times in parts if position < len(part.positions)]
            place.positions.append(self._place(self._sum(own + items)))
        place.followed = True

    def _sum(self, schemas: list[tuple[Any, int]]) -> State:
        state: State = {}
        for schema, times in schemas:
            self._add(state, self._closure(schema), times)
        if sum(state.values()) > MAX_BELOW:
            raise _TooMuch
        return state

    def _add(self, state: State, more: State, times: int) -> None:
        self._left -= 1 + len(more)
        if self._left < 0:
            raise _TooMuch
        for key, count in more.items():
            state[key] = state.get(key, 0) + count * times

    def _closure(self, schema: Any) -> State:
        """All schemas evaluated at the same place by evaluating one, including itself."""
        schema = self._shared(schema)
        key = id(schema)
        if (known := self._closures.get(key)) is not None:
            return known
        if key in self._open:
            raise UnusableSchema(
                "a reference in it leads back to itself without going into the data",
                "Put the reference under `properties`, `items` or another keyword that goes into the data.",
            )
        if len(self._open) >= MAX_CHAIN:
            raise _too_much()
        self._open.add(key)
        part = self._parts[key] = self._part(schema)
        state: State = {key: 1}
        try:
            for inner, times in part.here:
                self._add(state, self._closure(inner), times)
        except _TooMuch:
            raise _too_much() from None
        if sum(state.values()) > MAX_EVALUATIONS:
            raise _too_much()
        self._open.discard(key)
        self._closures[key] = state
        return state

    def _shared(self, schema: Any) -> Any:
        """One for all that are alike: most of a large schema is `{"type": "string"}` or just a reference."""
        leads_on = isinstance(schema, dict) and ("pattern" in schema or not _APPLYING.isdisjoint(schema))
        if leads_on and (schema.keys() != {"$ref"} or self._references.several_bases()):
            return schema
        return self._alike.setdefault(msgspec.json.encode(schema), schema)

    def _part(self, schema: Any) -> _Part:
        for pattern in _patterns(schema):
            measured = patterns.measure(pattern)
            if measured is None:
                raise UnusableSchema(
                    f"{pattern[:100]!r} is not a usable pattern",
                    patterns.FIX,
                )
            self._compiled += measured.limit
            self._classes += measured.classes**2
            if self._compiled > MAX_COMPILED or self._classes > MAX_CLASSES:
                raise UnusableSchema("its patterns are too large together", "Use fewer patterns, with smaller counts.")
        return _Part(schema, self._references)


class _TooMuch(Exception):
    """Raised if a schema exceeds this analysis."""


def _too_much() -> UnusableSchema:
    return UnusableSchema(
        f"its references and alternatives come to more than {MAX_EVALUATIONS} evaluations of one value",
        "Use fewer `anyOf`, `oneOf`, `allOf` and `$ref` inside each other; each multiplies those it leads to.",
    )


_APPLYING = {*MAPS, *LISTS, *SINGLE, "$ref", "$dynamicRef", "$recursiveRef"}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTS = ("format", "contentMediaType", "contentEncoding")
_WEIGHED = {
    *("required", "properties", "dependentRequired", "dependentSchemas", "dependencies", "enum", "const"),
    *(*_NUMBERS, *_TEXTS, "pattern", "uniqueItems"),
}


def _in_place(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from _list(schema, keyword)
    yield from _single(schema, "not", "if", "then", "else")
    for keyword in ("dependentSchemas", "dependencies"):
        yield from (inner for inner in _map(schema, keyword).values() if isinstance(inner, dict | bool))


def _single(schema: Mapping[str, Any], *keywords: str) -> Iterator[Any]:
    return (schema[word] for word in keywords if isinstance(schema.get(word), dict | bool))


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    return found if isinstance(found := schema.get(keyword), list) else []


def _map(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return found if isinstance(found := schema.get(keyword), dict) else {}


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from _map(schema, "patternProperties")
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]


def _pattern_weights(pattern: str) -> Weights:
    measured = patterns.measure(pattern)
    return Weights(others=10, byte=float("inf") if measured is None else measured.steps)


def _weigh(schema: Mapping[str, Any]) -> Iterator[Weights]:
    """The cost of a schema's keywords that evaluate no other schema; measured, with a margin."""
    yield Weights(objects=len(_list(schema, "required")) + min(len(_map(schema, "properties")), 64))
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for wanted in _map(schema, keyword).values():
            yield Weights(objects=2 + (len(wanted) if isinstance(wanted, list) else 0))
    yield from (_comparison(value) for value in _list(schema, "enum"))
    if "const" in schema:
        yield _comparison(schema["const"])
    for keyword in _NUMBERS:
        if keyword in schema:
            yield _number(keyword, schema[keyword])
    if isinstance(schema.get("pattern"), str):
        yield _pattern_weights(schema["pattern"])
    if any(keyword in schema for keyword in _TEXTS):
        yield Weights(others=10, byte=3)
    if schema.get("uniqueItems"):
        yield Weights(lists=60, unique=1)


def _comparison(value: Any) -> Weights:
    """Each part of a value is compared, until two differ."""
    if isinstance(value, str):
        return Weights(others=1 + len(value) / 32)
    if isinstance(value, bool | None):
        return Weights(others=1)
    if isinstance(value, int | float):
        return Weights(others=20 if abs(value) < 2**63 else 100)
    parts = 10 * _count(value)
    return Weights(objects=parts) if isinstance(value, dict) else Weights(lists=parts)


def _count(value: Any) -> int:
    found, todo = 0, [value]
    while todo:
        item = todo.pop()
        found += 1
        if isinstance(item, dict | list):
            todo.extend(item.values() if isinstance(item, dict) else item)
    return found


def _number(keyword: str, value: Any) -> Weights:
    """A fraction, and what does not fit in 64 bits, is counted with in long arithmetic."""
    plain = isinstance(value, int | float) and abs(value) < 2**63
    whole = plain and (isinstance(value, int) or value.is_integer())
    if keyword == "multipleOf" and not whole:
        return Weights(others=2_000)
    return Weights(others=2 if plain else 400, byte=0.1)
