"""Puts the type of a setting or a parameter, with its bounds, into words."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

_NAMES = {bool: "`true` or `false`", int: "integer", float: "number", str: "text", bytes: "bytes", Any: "any value"}


def allowed(kind: Any) -> str:
    """Return the values that a type allows, such as "integer ≥ 1 or `null`"."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(parts[0], [note for note in parts[1:] if isinstance(note, msgspec.Meta)])
    if origin is Literal:
        return _alternatives([f"`{msgspec.json.encode(value).decode()}`" for value in parts])
    if origin in {Union, types.UnionType}:
        return _union(parts)
    if origin in {list, tuple, set, frozenset, Sequence}:
        return _list(parts)
    return _object(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else _named(kind, origin)


def bounds(kind: Any) -> str | None:
    """Return the bounds of a type, such as "≥ 1", or None."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limits([note for note in parts[1:] if isinstance(note, msgspec.Meta)]) or bounds(parts[0])
    if origin in {Union, types.UnionType}:
        return next(filter(None, map(bounds, parts)), None)
    return None


def _named(kind: Any, origin: Any) -> str:
    if origin in {dict, Mapping} or kind is dict:
        return "object"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _bounded(kind: Any, notes: list[msgspec.Meta]) -> str:
    limits = _limits(notes)
    return f"{allowed(kind)} {limits}" if limits else allowed(kind)


def _limits(notes: list[msgspec.Meta]) -> str:
    return ", ".join(word for note in notes for word in (*_range(note), *_length(note), *_pattern(note)))


def _range(note: msgspec.Meta) -> list[str]:
    if note.ge is not None and note.le is not None:
        return [f"{_number(note.ge)} to {_number(note.le)}"]
    signs = (("≥", note.ge), (">", note.gt), ("≤", note.le), ("<", note.lt))
    return [f"{sign} {_number(bound)}" for sign, bound in signs if bound is not None]


def _length(note: msgspec.Meta) -> list[str]:
    if note.max_length is None:
        return [] if note.min_length is None else [f"of at least {note.min_length:,} characters"]
    if note.min_length is None:
        return [f"of at most {note.max_length:,} characters"]
    return [f"of {note.min_length:,} to {note.max_length:,} characters"]


def _pattern(note: msgspec.Meta) -> list[str]:
    return [] if note.pattern is None else [f"matching `{note.pattern}`"]


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def _union(parts: tuple[Any, ...]) -> str:
    words = [allowed(part) for part in parts if part is not type(None)]
    return " or ".join([*words, "`null`"] if type(None) in parts else words)


def _alternatives(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _list(parts: tuple[Any, ...]) -> str:
    items = [part for part in parts if part is not Ellipsis]
    if not items:
        return "list"
    count = "" if Ellipsis in parts or len(items) == 1 else f"{len(items)} "
    return f"list of {count}{_plural(items[0])}"


def _plural(kind: Any) -> str:
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return f"objects {allowed(inner)}"
    limits = bounds(kind)
    words = f"{allowed(inner)}s" if inner in {str, int, float} else allowed(inner)
    return f"{words} {limits}" if limits else words


def _object(kind: type[msgspec.Struct]) -> str:
    fields = ", ".join(f"`{field.encode_name}`: {allowed(field.type)}" for field in msgspec.structs.fields(kind))
    return f"{{{fields}}}"
