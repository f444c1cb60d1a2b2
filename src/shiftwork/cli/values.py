"""Values as people type them: JSON, files of JSON, times and durations."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

STDIN = "-"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


class When(NamedTuple):
    """A moment: fixed, or so many seconds after the store's now."""

    fixed: float | None = None
    later: float = 0.0

    def at(self, now: float) -> float:
        return now + self.later if self.fixed is None else self.fixed


class WhenType(click.ParamType):
    """An ISO-8601 time (UTC where it names no zone) or a time from now: 90s, 15m, 2h, 3d, 1w."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        if isinstance(value, When):
            return value
        if (seconds := _seconds(value)) is not None:
            return When(later=seconds)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a time like 2030-01-31T12:00Z nor one from now like 15m, 2h or 3d", param, ctx
            )
        return When(fixed=(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


class DurationType(click.ParamType):
    """A length of time in seconds: 90s, 15m, 2h, 3d, 1w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if (seconds := _seconds(value)) is None:
            self.fail(f"{value!r} is not a duration like 90s, 15m, 2h or 3d", param, ctx)
        return seconds


def _seconds(text: str) -> float | None:
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


class JsonObject(click.ParamType):
    """A JSON object, or `-` to read it from standard input."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        text = click.get_text_stream("stdin").read() if value == STDIN else value
        found = _parse(self, text, param, ctx)
        if not isinstance(found, dict):
            self.fail(f"expected a JSON object, got {_kind(found)}", param, ctx)
        return found


class JsonFile(click.ParamType):
    """A file that holds a JSON object or list, or `-` for standard input."""

    name = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any] | list[Any]:
        if isinstance(value, dict | list):
            return value
        try:
            text = click.get_text_stream("stdin").read() if value == STDIN else Path(value).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            self.fail(f"{value} is not UTF-8 text", param, ctx)
        except OSError as error:
            self.fail(f"{value} cannot be read: {error.strerror}", param, ctx)
        found = _parse(self, text, param, ctx)
        if not isinstance(found, dict | list):
            self.fail(f"expected a task, a list of tasks or a DAG, got {_kind(found)}", param, ctx)
        return found


def _parse(kind: click.ParamType, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        kind.fail(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}", param, ctx)
    except RecursionError:
        kind.fail("not JSON that can be read: nested too deeply", param, ctx)


def _kind(value: Any) -> str:
    return "null" if value is None else {list: "a list", dict: "an object", str: "text"}.get(type(value), repr(value))


def setting_value(text: str) -> Any:
    """A setting as typed: JSON, or plain text where it is none, so that words need no quotes."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if text.lstrip()[:1] in {"{", "[", '"'}:
            raise click.BadParameter(f"not JSON: {error.msg}, column {error.colno}", param_hint="VALUE") from None
        return text


WHEN = WhenType()
DURATION = DurationType()
OBJECT = JsonObject()
DOCUMENT = JsonFile()
