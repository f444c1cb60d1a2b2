"""Checks what a caller wrote before it joins a batch, so that one bad item never fails its neighbours."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from shiftwork.model import ids, times
from shiftwork.model.bounds import MAX_NAME, MAX_PAGE, MAX_TEXT
from shiftwork.model.errors import BadText, InputError, TooLarge
from shiftwork.settings.model import Bounds

T = TypeVar("T")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_encoder = msgspec.json.Encoder(order=None)
_BOUNDS = Bounds()


def read(value: Any, kind: type[T], where: str = "") -> T:
    """The caller's value as one of our structs; a wrong or unknown field is named by its path."""
    if isinstance(value, msgspec.Struct):
        value = plain(value, where)  # nothing was checked when it was made
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").lstrip(".")
        raise InputError(what, where=f"{where}.{place}".strip(".") or None, hint=times.hint(what)) from None


def read_all(values: Sequence[Any], kind: type[T], where: str) -> list[T]:
    """Check many values at once; only if that fails, check each to find the wrong one."""
    if not any(isinstance(value, msgspec.Struct) for value in values):
        with suppress(msgspec.ValidationError):
            return msgspec.convert(values, list[kind])  # type: ignore[valid-type]  # known when it runs
    return [read(value, kind, f"{where}[{place}]") for place, value in enumerate(values)]


def plain(value: Any, where: str) -> Any:
    """Convert the value to plain dicts, lists and scalars that JSON can express."""
    try:
        return msgspec.to_builtins(value)
    except RecursionError:
        raise TooLarge("nested too deeply", where=where) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot be written as JSON: {error}", where=where) from None


def fit(value: T, where: str) -> T:
    """A struct whose every text and number both databases can hold."""
    to_json(value, _BOUNDS.body_bytes, _BOUNDS, where)
    return value


def to_json(value: Any, limit: int, bounds: Bounds, where: str) -> str:
    """The value as JSON text that both databases keep exactly as it is."""
    try:
        text = _encoder.encode(value)
    except UnicodeEncodeError:
        raise BadText("text holds a lone surrogate", where=where) from None
    except RecursionError:
        raise TooLarge("nested too deeply", where=where) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"cannot be written as JSON: {error}", where=where) from None
    if len(text) > limit:
        raise TooLarge(f"{len(text)} bytes of JSON, at most {limit} are allowed", where=where)
    if b"\\u0000" in text and _NUL.search(text):
        raise BadText("text holds a NUL character", where=where)
    if len(text) > bounds.depth < text.count(b"[") + text.count(b"{") and depth(value) > bounds.depth:
        raise TooLarge(f"nested deeper than {bounds.depth} levels", where=where)
    if b"null" in text and _has_nonfinite(value):
        raise InputError("NaN and infinity have no JSON form", where=where)
    return text.decode()


def text(value: str | None, where: str, limit: int = MAX_TEXT) -> str | None:
    """Plain text that both databases can hold."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError(f"expected text, got {type(value).__name__}", where=where)
    if len(value) > limit:
        raise TooLarge(f"{len(value)} characters, at most {limit} are allowed", where=where)
    if "\0" in value:
        raise BadText("text holds a NUL character", where=where)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadText("text holds a lone surrogate", where=where) from None
    return value


def name(value: str, where: str) -> str:
    """An id that a caller chose."""
    checked = text(value, where, MAX_NAME)
    if not checked:
        raise InputError("must not be empty", where=where)
    return checked


def names(values: Sequence[str], where: str) -> tuple[str, ...]:
    return tuple(name(value, where) for value in values)


def one_of(value: str, known: Collection[str], where: str) -> None:
    if value not in known:
        raise InputError(f"{value!r} is not one of {', '.join(known)}", where=where)


def count(value: int, where: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise InputError(f"expected a whole number from 1 to {most}, got {value!r}", where=where)
    return value


def is_float(value: float) -> bool:
    """Whether both databases can store the value as a float; an integer of hundreds of digits does not fit."""
    return abs(value) <= sys.float_info.max and math.isfinite(value)


def page(limit: int, most: int = MAX_PAGE) -> int:
    return count(limit, "limit", most)


def cursor(after: str | None) -> str | None:
    """The cursor of a page: the id that the previous page ended with."""
    if after is None:
        return None
    if (uuid := ids.parse(after)) is None:
        hint = "Pass the `next` of the previous page, or the id of its last row."
        raise InputError(f"{after!r} is not a cursor of a page", where="after", hint=hint)
    return uuid


def depth(value: Any) -> int:
    """How deep lists and objects are nested, without recursion."""
    deepest, level = 0, [msgspec.to_builtins(value)]
    while level:
        level = [inner for item in level for inner in _inside(item)]
        deepest += 1
    return deepest


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _has_nonfinite(value: Any) -> bool:
    todo = [msgspec.to_builtins(value)]
    while todo:
        item = todo.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return True
        todo.extend(_inside(item))
    return False
