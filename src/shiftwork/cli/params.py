"""Values as people type them: JSON, files of JSON, times and durations."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

STDIN = "-"
_TOO_LONG = "cannot be read as JSON: a number has thousands of digits"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


class Number(click.types.FloatParamType):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _finite(super().convert(value, param, ctx))


class NumberRange(click.FloatRange):
    """A number in a range: click accepts NaN in every range, and infinity in open ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _finite(super().convert(value, param, ctx))


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise click.BadParameter(f"{number} is not a finite number")
    return number


NUMBER = Number()


class When(NamedTuple):
    """A moment: absolute, or this many seconds after the store's current time."""

    fixed: float | None = None
    later: float = 0.0

    def at(self, now: float) -> float:
        return now + self.later if self.fixed is None else self.fixed


def when(text: str) -> When:
    """An ISO-8601 time (UTC if it names no zone) or a time from now: 90s, 15m, 2h, 3d, 1w."""
    if (seconds := _seconds(text)) is not None:
        _refuse_undated(text, time.time() + seconds)
        return When(later=seconds)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time like 2030-01-31T12:00Z nor one from now like 15m, 2h or 3d"
        ) from None
    at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    _refuse_undated(text, at)
    return When(fixed=at)


def past(text: str) -> When:
    """An ISO-8601 time (UTC if it names no zone) or how long ago: 90s, 15m, 2h, 3d, 1w."""
    if (seconds := _seconds(text)) is None:
        return when(text)
    _refuse_undated(text, time.time() - seconds)
    return When(later=-seconds)


def _refuse_undated(text: str, at: float) -> None:
    """Refuse a time without a calendar date: it could not be shown."""
    try:
        datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        raise click.BadParameter(f"{text!r} is outside the calendar, whose years are 1 to 9999") from None


def duration(text: str) -> float:
    """A length of time in seconds: 90s, 15m, 2h, 3d, 1w."""
    if (seconds := _seconds(text)) is None:
        raise click.BadParameter(f"{text!r} is not a duration like 90s, 15m, 2h or 3d")
    return _finite(seconds)


FOREVER = "forever"


def patience(text: str) -> float:
    """How long to wait: seconds, a duration like 5m, or `forever`."""
    if text == FOREVER:
        return math.inf
    found = _seconds(text) if _seconds(text) is not None else _seconds(f"{text.strip()}s")
    if found is None:
        raise click.BadParameter(f"{text!r} is not a number of seconds, nor a duration like 90s, 15m or 2h")
    return _finite(found)


def _seconds(text: str) -> float | None:
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2]] if match else None


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, or `-` to read it from standard input."""
    found = _parse(_read_stdin() if text == STDIN else text)
    if not isinstance(found, dict):
        raise click.BadParameter(f"expected a JSON object, got {_kind(found)}")
    return found


def json_object_or_file(text: str) -> dict[str, Any]:
    """A JSON object, `@file` to read it from a file, or `-` for standard input."""
    return json_object(_read_file(text[1:]) if text.startswith("@") else text)


def payload_part(text: str) -> dict[str, Any]:
    """A JSON object, `key=text`, `key:=JSON`, either with `@file` for the value, or `-` for standard input."""
    if text == STDIN or text.lstrip()[:1] in {"{", "["}:
        return json_object(text)
    key, value = _pair(text, "key:=JSON")
    if not key.endswith(":"):
        return {key: _read_file(value[1:]) if value.startswith("@") else value}
    if key == ":":
        raise click.BadParameter(f"{text!r} has no key before :=")
    try:
        return {key[:-1]: json_value(value)}
    except click.BadParameter as error:
        raise click.BadParameter(f"{key[:-1]}: {error.message}; write {key[:-1]}=... for text") from None


def setting_part(text: str) -> dict[str, Any]:
    """A JSON object, or `key=value`, where the value is JSON or a plain word."""
    if text.lstrip()[:1] == "{":
        return json_object(text)
    key, value = _pair(text, "a JSON object")
    return {key: word_or_json(value)}


def _pair(text: str, other: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is neither key=value nor {other}")
    return key.strip(), value


def merged(_context: click.Context, _option: click.Parameter, parts: tuple[dict[str, Any], ...]) -> Any:
    """Several parts as one object; None if none was given."""
    known: dict[str, Any] = {}
    for part in parts:
        if twice := next((key for key in part if key in known), None):
            raise click.BadParameter(f"{twice!r} is given twice")
        known |= part
    return known if parts else None


def json_value(text: str) -> Any:
    """Any JSON, `@file` to read it from a file, or `-` for standard input."""
    if text == STDIN:
        return _parse(_read_stdin())
    return _parse(_read_file(text[1:]) if text.startswith("@") else text)


def json_file(name: str) -> dict[str, Any] | list[Any]:
    """A file that holds a JSON object or list, or `-` for standard input."""
    found = _parse(_read_stdin() if name == STDIN else _read_file(name))
    if not isinstance(found, dict | list):
        raise click.BadParameter(f"expected a task, a list of tasks or a DAG, got {_kind(found)}")
    return found


def text_or_file(text: str) -> str:
    """A text as typed, `@file` to read it from a file, or `-` for standard input."""
    if text == STDIN:
        return _read_stdin()
    return _read_file(text[1:]) if text.startswith("@") else text


def text_file(name: str) -> str:
    """The text of a file, or `-` for standard input."""
    return _read_stdin() if name == STDIN else _read_file(name)


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise click.BadParameter(f"{name} is not UTF-8 text") from None
    except OSError as error:
        raise click.BadParameter(f"{name} cannot be read: {error.strerror}") from None


def _read_stdin() -> str:
    try:
        return standard_input().read().decode()
    except UnicodeDecodeError:
        raise click.BadParameter("standard input is not UTF-8 text") from None
    except OSError as error:
        raise click.BadParameter(f"standard input cannot be read: {error.strerror}") from None


def standard_input() -> BinaryIO:
    """Standard input as bytes. Python has none if the shell closed it (`<&-`)."""
    if sys.stdin is None:
        raise click.BadParameter("standard input is closed")
    return sys.stdin.buffer


def is_typed_at() -> bool:
    """Whether input comes from a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def source(name: str) -> BinaryIO | Path:
    """The bytes of a file, or `-` for standard input."""
    return standard_input() if name == STDIN else Path(name)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except ValueError:
        raise click.BadParameter(_TOO_LONG) from None
    except RecursionError:
        raise click.BadParameter("cannot be read as JSON: nested too deeply") from None


def _kind(value: Any) -> str:
    return "null" if value is None else f"a JSON {type(value).__name__}"


def word_or_json(text: str) -> Any:
    """A value as typed: JSON, or otherwise plain text, so that words need no quotes."""
    return _parse(text) if text.lstrip()[:1] in {"{", "[", '"'} else _word(text)


def _word(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except ValueError:
        raise click.BadParameter(_TOO_LONG) from None


def given_fields(options: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The options that were given, as the queue takes them."""
    named = {name: value for name, value in options.items() if value not in (None, ())}
    return {name: _as_field(value, now) for name, value in named.items()}


def _as_field(value: Any, now: float) -> Any:
    if isinstance(value, When):
        return value.at(now)
    return list(value) if isinstance(value, tuple) else value
