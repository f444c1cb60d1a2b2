"""Reads the Loki document's configuration of circuit breakers: `defaults`, and `overrides` by type.

The document's block is a small subset of YAML: names, numbers, two levels of indentation, comments. This module reads
exactly that subset, without a YAML library, and JSON of the same shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from shiftwork.limits.model import BreakerConfig
from shiftwork.model.errors import InputError

_LINE = re.compile(r"""(?:"([^"]+)"\s*|'([^']+)'\s*|([^\s"':-][^:]*)):(?:\s+(\S+))?""")
_HINT = "Write `defaults` and `overrides` by type, with failureThreshold, cooldownSeconds and halfOpenAfter."


def parse(text: str) -> BreakerConfig:
    """Parse the configuration from YAML or JSON text."""
    try:
        tree = msgspec.json.decode(text) if text.lstrip()[:1] == "{" else _tree(text)
    except msgspec.DecodeError as error:
        raise InputError(f"not JSON: {error}", where="config", hint=_HINT) from None
    try:
        return msgspec.convert(tree, BreakerConfig)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").lstrip(".")
        raise InputError(what, where=f"config.{place}".rstrip("."), hint=_HINT) from None


def _tree(text: str) -> dict[str, Any]:
    """Parse indented lines into nested names and values."""
    root: dict[str, Any] = {}
    open_: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for number, line in enumerate(text.splitlines(), 1):
        bare = _without_comment(line).rstrip()
        if not bare or bare == "---":
            continue
        indent = len(bare) - len(bare.lstrip(" "))
        if bare[indent] == "\t":
            _refuse(number, "indent with spaces, not tabs")
        while open_[-1][0] >= indent:
            open_.pop()
        level = _level(open_, indent, number)
        name, value = _pair(bare[indent:], number)
        if name in level:
            _refuse(number, f"{name!r} appears twice")
        level[name] = {} if value is None else value
        if value is None:
            open_.append((indent, level[name]))
    return _filled(root)


def _level(open_: list[tuple[int, dict[str, Any]]], indent: int, number: int) -> dict[str, Any]:
    """The mapping that a line belongs to; all its names begin in the same column."""
    inside = open_[-1][1]
    if indent and len(open_) == 1:
        _refuse(number, "unexpected indentation")
    column = inside.setdefault("", indent)
    if column != indent:
        _refuse(number, "inconsistent indentation")
    return inside


def _filled(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the column numbers; a name without content becomes an empty object."""
    return {name: _filled(value) if isinstance(value, dict) else value for name, value in tree.items() if name}


def _pair(text: str, number: int) -> tuple[str, Any]:
    found = _LINE.fullmatch(text)
    if found is None:
        _refuse(number, f"{text!r} is not `name: value`")
    name, value = found[1] or found[2] or found[3].rstrip(), found[4]
    return name, None if value is None else _number(value, number)


def _number(text: str, number: int) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        _refuse(number, f"{text!r} is not a number")


def _without_comment(line: str) -> str:
    if line.lstrip().startswith("#"):
        return ""
    return line.partition(" #")[0]


def _refuse(number: int, what: str) -> NoReturn:
    raise InputError(f"line {number}: {what}", where="config", hint=_HINT)
