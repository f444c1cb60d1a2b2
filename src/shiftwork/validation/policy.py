"""Decides whether an output passes its task's validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shiftwork.model.errors import InputError
from shiftwork.model.task import NewVerdict, Output
from shiftwork.validation import patterns
from shiftwork.validation import schema as schemas
from shiftwork.validation.commands import WHERE, command_of
from shiftwork.validation.expansion import UnusableSchema

MAX_ERRORS = 5
SCHEMA_BYTES = 65_536
MAX_REASON_LENGTH = 2_000

LATER = frozenset({"test-pass", "llm-judge"})
"""Methods whose verdict comes from outside, with the output or after it."""

JUDGE = "judge"
"""The type of a judging task, and the capability that its agent needs."""

JUDGING = "judging"
"""The mark of a judging task's row: accepting its output is a verdict on another's."""

JUDGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["verdict"],
    "properties": {
        "verdict": {"enum": ["accept", "reject"]},
        "reasons": {"type": ["string", "array"], "items": {"type": "string"}},
    },
}
"""What a judge submits."""


def check_output(output: Output) -> None:
    """Refuse an impossible validation when the task is submitted, not when its work is done."""
    schema = output.validation_schema
    if schema is None:
        return
    if output.validation == "json-schema":
        check_schema(schema)
    elif output.validation == "regex":
        _check_pattern(pattern_of(schema))
    elif output.validation == "test-pass":
        command_of(schema)


def check_schema(schema: Any, where: str = WHERE) -> None:
    """Refuse an invalid or too large JSON Schema, or one whose validation could take too long."""
    text = msgspec.json.encode(schema)
    if len(text) > SCHEMA_BYTES:
        raise InputError(f"the schema has {len(text)} bytes, at most {SCHEMA_BYTES} are allowed", where=where)
    try:
        schemas.compiled(text)
    except UnusableSchema as error:
        raise InputError(f"not a usable JSON Schema: {_short(error)}", where=where, hint=error.fix) from None


def _check_pattern(pattern: str) -> None:
    try:
        patterns.matcher(pattern)
    except ValueError:
        raise InputError(
            f"{_clip(pattern, 100)!r} is not a usable pattern",
            where=WHERE,
            hint=patterns.FIX,
        ) from None


def pattern_of(schema: Any) -> str:
    """The pattern of `regex`: the text itself, or `{"pattern": text}`."""
    pattern = schema.get("pattern") if isinstance(schema, dict) and schema.keys() == {"pattern"} else schema
    if not isinstance(pattern, str) or not pattern:
        raise InputError('regex takes a pattern, or {"pattern": ...}', where=WHERE)
    return pattern


def against_schema(schema: Any, data: Any) -> list[str]:
    """The validator's errors about the data; empty if it passes."""
    try:
        found = schemas.compiled(_text(schema)).violations(data)
    except UnusableSchema as error:  # stored before such schemas were refused
        return [f"output: cannot be checked, its schema is not usable: {_short(error)}"]
    return [f"{'/'.join(map(str, each.path)) or 'output'}: {_short(each.what)}" for each in found]


def _text(schema: Any) -> bytes:
    """The schema as text; that of a type is one already."""
    return schema if isinstance(schema, bytes) else msgspec.json.encode(schema)


def steps_of(output: Mapping[str, Any], data: Any, text: str | None) -> float:
    """The most steps, 15 ns each, of validating this output; at least one if there is anything to validate."""
    method, asked = output.get("validation", "none"), output.get("validation_schema")
    if asked is None or method == "none":
        return 0
    if method == "regex":
        return patterns.steps_of(pattern_of(asked), as_text(data, text))
    return schemas.steps_of(_text(asked), data)


def against_pattern(schema: Any, text: str) -> list[str]:
    """The same for a pattern, which must be found somewhere in the text."""
    pattern = pattern_of(schema)
    try:
        matcher, longest = patterns.matcher(pattern)
    except ValueError:  # stored before such patterns were refused
        return [f"output: cannot be checked, {_clip(pattern, 100)!r} is not a usable pattern"]
    if (size := len(text.encode())) > longest:
        return [f"output: {size} bytes; this pattern is matched against at most {longest}"]
    return [] if matcher.is_valid(text) else [f"output: {_clip(pattern, 200)} is not found in it"]


def as_text(data: Any, text: str | None) -> str:
    """The output as text: its text, or its data, as JSON unless it is a string."""
    if text is not None:
        return text
    return data if isinstance(data, str) else msgspec.json.encode(data).decode()


def is_report(report: Any) -> bool:
    """Whether decisions are documented: any non-empty object, since no document defines its fields."""
    return isinstance(report, dict) and any(value not in (None, "", [], {}) for value in report.values())


def reasons_of(given: NewVerdict) -> list[str]:
    """The reasons given with the verdict, or their exit code."""
    if given.note:
        return [_clip(given.note, MAX_REASON_LENGTH)]
    if given.passed:
        return []
    code = (given.evidence or {}).get("exit_code")
    return ["the tests did not pass" if code is None else f"the tests did not pass: exit code {code}"]


def of_judge(data: Any) -> tuple[bool, list[str]]:
    """A judge's answer, validated by its schema: accepted or not, and why."""
    stated = data.get("reasons") or []
    reasons = [stated] if isinstance(stated, str) else stated
    return data["verdict"] == "accept", [_clip(reason, MAX_REASON_LENGTH) for reason in reasons[:MAX_ERRORS]]


def _short(text: object) -> str:
    return _clip(str(text).splitlines()[0], 300)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def author_of(body: Mapping[str, Any]) -> str | None:
    """The agent whose output a judging task judges."""
    found = body.get("payload", {}).get("author")
    return found if isinstance(found, str) else None
