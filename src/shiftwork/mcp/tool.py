"""A tool: one thing an agent can do, declared once. Its schemas, hints and checks follow from the declaration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import msgspec

Role = Literal["worker", "submitter", "all"]
ROLES: tuple[Role, ...] = ("worker", "submitter", "all")
Scope = Literal["read", "submit", "work", "operate"]
Handler = Callable[..., Awaitable[msgspec.Struct]]


class Tool(NamedTuple):
    """One tool: who has it, what a token needs for it, what it takes and gives."""

    handler: Handler
    roles: frozenset[str]
    scope: Scope
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    destroys: bool
    idempotent: bool
    """Said again, it changes nothing more."""

    @property
    def name(self) -> str:
        return self.handler.__name__.rstrip("_")

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.handler.__doc__ or "")

    @property
    def reads(self) -> bool:
        return self.scope == "read"

    def is_for(self, role: Role) -> bool:
        return role == "all" or role in self.roles


class Tools:
    """The tools of one side, in the order of their declaration."""

    def __init__(self) -> None:
        self.all: list[Tool] = []

    def __call__(
        self,
        scope: Scope,
        *roles: Role,
        takes: type[msgspec.Struct],
        gives: type[msgspec.Struct],
        destroys: bool = False,
        idempotent: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated coroutine as a tool of these roles."""

        def declare(handler: Handler) -> Handler:
            self.all.append(Tool(handler, frozenset(roles), scope, takes, gives, destroys, idempotent))
            return handler

        return declare


@functools.cache
def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a record with an object at its root, as the protocol wants it, and without idle words."""
    whole = msgspec.json.schema(kind, ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = whole["$defs"]
    root = definitions.pop(kind.__name__)
    rest = {"$defs": definitions} if definitions else {}
    plain: dict[str, Any] = _plain({**root, **rest})
    return plain


def _plain(value: Any) -> Any:
    """Without what tells a model nothing: names of our classes, and that what may be left out may be null as well."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    left = {key: each for key, each in value.items() if not _is_idle(value, key)}
    kinds = [each for each in left.get("anyOf", []) if each != {"type": "null"}]
    if len(kinds) == 1:
        del left["anyOf"]
        left = {**kinds[0], **left}
    return {key: _plain(each) for key, each in left.items()}


def _is_idle(schema: dict[str, Any], key: str) -> bool:
    """Words of a schema, not properties that happen to be called like them."""
    named = key == "title" and isinstance(schema[key], str)
    return named or (key == "default" and schema[key] in (None, [], {})) or (key == "required" and schema[key] == [])
