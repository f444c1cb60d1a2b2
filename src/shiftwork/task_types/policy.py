"""Decides whether a payload fits its type, and which declaration of a type is in force."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.model.errors import InvalidPayload
from shiftwork.task_types.model import TypeDeclaration
from shiftwork.validation import schema as schemas
from shiftwork.validation.expansion import UnusableSchema

MAX_SUPERSEDED = 50
MAX_WORDS = 300
_encoder = msgspec.json.Encoder(order="deterministic")


class Digests(NamedTuple):
    """Digests of the parts of a declaration: equal digests mean equal declarations."""

    payload: str
    result: str
    options: str

    @property
    def whole(self) -> str:
        return digest(self)


def digest(value: Any) -> str:
    return hashlib.sha256(_encoder.encode(value)).hexdigest()[:16]


def digests(declared: TypeDeclaration) -> Digests:
    return Digests(digest(declared.payload_schema), digest(declared.result_schema), digest(declared.options))


def replaces(new: str, current: str, superseded: Sequence[str], *, still_declared: bool) -> bool:
    """Whether a declaration replaces the one in force.

    A new one does. One that was replaced before, such as that of a restarted worker of an old release, does only if no
    active worker declares the one in force.
    """
    return new != current and (new not in superseded or not still_declared)


def superseded_by(new: str, current: str, before: Sequence[str]) -> list[str]:
    """The digests that were in force before this one, newest first."""
    return [each for each in dict.fromkeys([current, *before]) if each != new][:MAX_SUPERSEDED]


def check_payload(type: str, payload: Mapping[str, Any], schema: bytes, where: str) -> None:
    """Refuse a payload that does not fit the schema of its type."""
    try:
        found = schemas.compiled(schema).violations(payload)
    except UnusableSchema as error:  # stored before such schemas were refused
        what = f"the schema of type {type!r} is not usable: {_short(error)}"
        raise InvalidPayload(what, where=where, hint="Register the type again.", type=type) from None
    if not found:
        return
    errors = [f"{'.'.join(map(str, each.path)) or 'payload'}: {_short(each.what)}" for each in found]
    place = ".".join([where, *map(str, found[0].path)])
    what = f"the payload does not fit type {type!r}: {'; '.join(errors)}"
    raise InvalidPayload(what, where=place, type=type, errors=errors)


def steps_of(payload: Mapping[str, Any], schema: bytes) -> float:
    """The most steps that the validator can take for this payload."""
    return schemas.steps_of(schema, payload)


def differing(declared: Digests, current: Digests) -> list[str]:
    """The names of the fields in which two declarations differ."""
    names = ("payload_schema", "result_schema", "options")
    return [name for name, one, other in zip(names, declared, current, strict=True) if one != other]


def is_declared(current: str, by: Collection[Digests]) -> bool:
    return any(each.whole == current for each in by)


def _short(text: object) -> str:
    line = (str(text).splitlines() or [""])[0]
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"
