"""Reads the configuration of circuit breakers as the Loki document writes it: `defaults`, and `overrides` by type.

The document's block is YAML of a small kind: names, numbers, two levels of indentation, comments. Exactly that is read
here, without a library for all the rest; JSON of the same shape is read, too.
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
    """The configuration in a text of YAML or JSON."""
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
    """Nested names and values of indented lines."""
    root: dict[str, Any] = {}
    open_: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for number, line in enumerate(text.splitlines(), 1):
        bare = _without_comment(line).rstrip()
        if not bare or bare == "---":
            continue
        indent = len(bare) - len(bare.lstrip(" "))
        if bare[indent] == "\t":
            _refuse(number, "a tab does not indent")
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
    """The names among which a line stands; all of them begin in the same column."""
    inside = open_[-1][1]
    if indent and len(open_) == 1:
        _refuse(number, "is indented, but below nothing")
    column = inside.setdefault("", indent)
    if column != indent:
        _refuse(number, "does not begin where its neighbours do")
    return inside


def _filled(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Without the columns; a name with nothing below it stands for an empty object."""
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
