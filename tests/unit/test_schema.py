"""JSON Schemas of callers: which are refused, which data is too large, and how errors are reported."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from shiftwork.model.errors import InputError
from shiftwork.validation import expansion, patterns, schema
from shiftwork.validation import policy as verdict

Violation = tuple[tuple[str | int, ...], str]


def bomb(depth: int) -> dict[str, Any]:
    """Each definition names the next one twice: 2^depth evaluations of one value."""
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$defs": {**defs, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(times: int, context: Any, inner: Any = True) -> Any:  # noqa: FBT002  # the schema `true`
    for _ in range(times):
        inner = context(inner)
    return inner


def is_valid(asked: Any, data: Any) -> bool:
    return verdict.against_schema(asked, data) == []


@pytest.mark.parametrize(
    "asked",
    [
        bomb(40),
        {"items": {"$ref": "#/$defs/d0"}, "$defs": bomb(40)["$defs"]},
        {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": True}}
        | {"not": {"$ref": "#/$defs/d0"}},
        nested(12, lambda inner: {"anyOf": [inner], "unevaluatedProperties": False}),
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(500)} | {"d500": True}, "$ref": "#/$defs/d0"},
        {"$defs": {"many": {"anyOf": [{"const": 1}] * 900}}, "if": {"oneOf": [{"$ref": "#/$defs/many"}] * 12}},
    ],
)
def test_schema_that_expands_too_far_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match="more than 10000 evaluations") as refused:
        verdict.check_schema(asked)
    assert refused.value.code == "invalid_input"
    assert refused.value.where == "output.validation_schema"
    assert "each multiplies" in refused.value.hint


@pytest.mark.parametrize(
    "asked",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"not": {"anyOf": [{"$ref": "#"}]}},
        {"if": {"$ref": "#"}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {"$dynamicAnchor": "here", "anyOf": [{"$dynamicRef": "#here"}]},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$id": "https://example.org/a", "allOf": [{"$ref": "https://example.org/a"}]}}},
    ],
)
def test_self_reference_at_the_same_value_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match="leads back to itself"):
        verdict.check_schema(asked)


@pytest.mark.parametrize(
    "asked", [{"$ref": "http://127.0.0.1:1/a"}, {"$ref": "other.json"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#/a"}]
)
def test_external_references_are_not_fetched(asked: Any) -> None:
    with pytest.raises(InputError, match="leads nowhere in the schema"):
        verdict.check_schema(asked)


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", "(a)\\1", "(", "a{1,5000}" * 50, "\\w" * 2000, "\\s" * 41, "a" * 5000, "(a{1,900}){1,900}"]
)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_schema_with_an_unusable_pattern_is_refused(pattern: str, keyword: str) -> None:
    asked = {"pattern": pattern} if keyword == "pattern" else {"patternProperties": {pattern: True}}
    with pytest.raises(InputError, match="not a usable pattern"):
        verdict.check_schema(asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"patternProperties": {f"(a{{1,90}}){{1,{n}}}": True for n in range(1, 50)}},
        {"allOf": [{"pattern": "\\s" * 40 + str(n)} for n in range(9)]},
    ],
)
def test_schema_with_many_large_patterns_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match="patterns are too large together"):
        verdict.check_schema(asked)


TREE: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}
EXPRESSION: dict[str, Any] = {
    "$ref": "#/$defs/expression",
    "$defs": {
        "expression": {
            "oneOf": [
                {"type": "number"},
                {"type": "object", "properties": {"minus": {"$ref": "#/$defs/expression"}}, "required": ["minus"]},
                {
                    "type": "object",
                    "properties": {"plus": {"type": "array", "items": {"$ref": "#/$defs/expression"}}},
                    "required": ["plus"],
                },
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (
            TREE,
            nested(30, lambda inner: {"name": "a", "children": [inner]}, {"name": "b"}),
            {"children": []},
        ),
        (EXPRESSION, {"plus": [1, {"minus": {"plus": [2, 3]}}]}, {"plus": [1, {"minus": {"plus": [2, "3"]}}]}),
        ({"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}, "type": "object"}, {"a": {}}, {"a": 1}),
        ({"$anchor": "top", "items": {"$ref": "#top"}, "type": "array"}, [[], [[]]], [[1]]),
        (
            {
                "$id": "https://example.org/root.json",
                "$ref": "part.json",
                "$defs": {"p": {"$id": "part.json", "items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "null"}}}},
            },
            [None],
            [1],
        ),
        ({"$id": "urn:example:a", "$defs": {"x": {"type": "string"}}, "$ref": "#/$defs/x"}, "a", 1),
        (
            {"definitions": {"a/b~c": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/a~1b~0c"}}},
            {"x": "a"},
            {"x": 1},
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}, ["a", 1], [1]),
        (
            {"properties": {"enum": {"type": "string"}, "$ref": {"type": "null"}}},
            {"enum": "a", "$ref": None},
            {"enum": 1},
        ),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, {"a": 1}, {"A": 1}),
        (True, 1, None),
    ],
)
def test_ordinary_schemas_are_accepted(asked: Any, good: Any, bad: Any) -> None:
    verdict.check_schema(asked)
    assert is_valid(asked, good)
    if asked is not True:
        assert not is_valid(asked, bad)


@pytest.mark.parametrize(
    "asked",
    [
        {"items": {"anyOf": [{"const": n} for n in range(500)]}},
        {"items": {"enum": list(range(9000))}, "uniqueItems": True},
    ],
)
def test_data_too_large_for_its_schema_is_not_accepted(asked: Any) -> None:
    verdict.check_schema(asked)
    assert is_valid(asked, [1, 2, 3])
    (wrong,) = verdict.against_schema(asked, list(range(5_000)))
    assert wrong == "output: too large for its schema: checking it would take more than 2000000 steps"


def test_recursion_with_alternatives_is_bounded_by_steps() -> None:
    asked = {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}
    verdict.check_schema(asked)
    assert is_valid(asked, nested(8, lambda inner: {"a": inner}, {}))
    (wrong,) = verdict.against_schema(asked, nested(60, lambda inner: {"a": inner}, {}))
    assert "too large for its schema" in wrong


def test_invalid_part_of_large_data_is_named() -> None:
    row = {"properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/row"}}}}
    asked = {"properties": {"rows": {"items": {"$ref": "#/$defs/row"}}}, "$defs": {"row": row}}
    rows: list[dict[str, Any]] = [{"name": "a", "children": []} for _ in range(5_000)]
    rows[4_321] = {"name": "a", "children": [{"name": 1}]}
    assert verdict.against_schema(asked, {"rows": rows}) == ['rows/4321/children/0/name: 1 is not of type "string"']


def test_only_the_first_five_invalid_values_are_reported() -> None:
    wrong = verdict.against_schema({"items": {"type": "string"}}, list(range(50)))
    assert wrong == [f'{n}: {n} is not of type "string"' for n in range(5)]


@pytest.mark.parametrize(
    ("data", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, "0", None, [], {}], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], False),
        ([[1, 2], [2, 1]], True),
        ([[True], [1]], True),
        ([2**70, 2**70], False),
        ([2**70 + n for n in range(5_000)], True),
        ([["a"], {"a": 1}], True),
    ],
)
def test_items_are_unique_as_json_compares_them(data: list[Any], *, unique: bool) -> None:
    assert is_valid({"uniqueItems": True}, data) is unique
    assert is_valid({"uniqueItems": False}, data)


def test_verdict_equals_the_library_for_random_schemas() -> None:
    rng = random.Random(7)  # the same ones each time
    taken = 0
    for _ in range(1_500):
        asked, data = _schema(rng, 3), _data(rng, 3)
        try:
            verdict.check_schema(asked)
        except InputError:
            continue
        taken += 1
        assert is_valid(asked, data) == jsonschema_rs.is_valid(asked, data), json.dumps([asked, data])
    assert taken > 1_400


def _schema(rng: random.Random, depth: int) -> Any:
    leaf: list[Any] = [
        True,
        {"type": "string"},
        {"type": "integer"},
        {"const": 1},
        {"enum": ["a", 1]},
        {"minLength": 1},
    ]
    leaf += [{"pattern": "^a+$"}, {"required": ["a"]}, {"uniqueItems": True}, {"minItems": 1}]
    if depth == 0:
        return rng.choice(leaf)
    inner = [_schema(rng, depth - 1) for _ in range(3)]
    made: dict[str, Any] = rng.choice(
        [
            {"anyOf": inner},
            {"oneOf": inner[:2]},
            {"allOf": inner[:2]},
            {"not": inner[0]},
            {"if": inner[0], "then": inner[1], "else": inner[2]},
            {"properties": {"a": inner[0], "b": inner[1]}, "additionalProperties": inner[2]},
            {"patternProperties": {"^a": inner[0]}, "unevaluatedProperties": inner[1]},
            {"items": inner[0], "contains": inner[1]},
            {"prefixItems": inner[:2], "items": inner[2]},
            {"$ref": "#/$defs/x", "$defs": {"x": inner[0]}} if depth == 3 else {"items": inner[0]},
            {"propertyNames": inner[0], "dependentSchemas": {"a": inner[1]}},
        ]
    )
    return made


def _data(rng: random.Random, depth: int) -> Any:
    if depth == 0:
        return rng.choice(["a", "aa", "b", "", 1, 1.0, 0, True, None])
    inner = [_data(rng, depth - 1) for _ in range(2)]
    return rng.choice([inner, {"a": inner[0], "b": inner[1]}, {"a": inner[0]}, [], {}, inner[0]])


def test_step_count_grows_with_data_and_is_bounded() -> None:
    text = b'{"items":{"type":"integer"}}'
    schema.compiled(text)
    few, many = (schema.steps_of(text, list(range(n))) for n in (100, 10_000))
    assert 50 * few < many <= schema.MAX_STEPS
    assert schema.steps_of(b'{"items":{"multipleOf":0.1}}', [0.1] * 100_000) < 10_000  # looked through, not validated


def test_analysis_ends_for_schemas_full_of_references() -> None:
    rng = random.Random(3)  # the same ones each time
    for width in (2, 5, 20):
        defs = {
            f"d{n}": {"anyOf": [{"properties": {rng.choice("abc"): {"$ref": f"#/$defs/d{rng.randrange(60)}"}}}] * width}
            for n in range(60)
        }
        asked = {"$defs": defs, "$ref": "#/$defs/d0"}
        try:
            levels = expansion.expand(asked).levels
        except expansion.UnusableSchema:
            continue
        assert len(levels) >= expansion.MIN_LEVELS


@pytest.mark.parametrize(("pattern", "places"), [("abc", 43), ("a{5}", 54), ("a{2,7}b", 61), ("(ab){3}", 82)])
def test_pattern_places_bound_the_cost_per_byte(pattern: str, places: int) -> None:
    assert patterns._places(pattern) == places  # the measure itself
