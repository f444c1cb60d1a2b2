"""Resolves the references inside a JSON Schema; never fetches anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
SINGLE = frozenset(
    {"items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"}
    | {"propertyNames", "not", "if", "then", "else", "contentSchema"}
)
_REFERRING = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class Unresolved(ValueError):
    """A reference that leads nowhere inside the schema."""


class References:
    """The places of one schema by their addresses."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._base: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, list[Any]] = {}
        self._roots: list[Any] = [root]

    def several_bases(self) -> bool:
        """Whether the same reference may lead to different places, by where it stands."""
        if not self._base:
            self._note_all()
        return len(self._resources) > 1

    def _note_all(self) -> None:
        todo: list[tuple[Any, str]] = [(self._root, "")]
        while todo:
            schema, base = todo.pop()
            if isinstance(schema, dict) and id(schema) not in self._base:
                base = self._record(schema, base)
                todo.extend((inner, base) for inner in subschemas(schema))

    def _record(self, schema: dict[str, Any], base: str) -> str:
        for name in (schema.get("$id"), schema.get("id")):
            if isinstance(name, str) and not name.startswith("#"):
                base = _without_fragment(_join(base, name))
                self._resources.setdefault(base, schema)
                self._roots.append(schema)
            elif isinstance(name, str):
                self._anchors.setdefault((base, name[1:]), schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors.setdefault((base, name), schema)
        if isinstance(name := schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(name, []).append(schema)
        self._base[id(schema)] = base
        return base

    def targets(self, schema: dict[str, Any]) -> list[Any]:
        """All schemas that the references of this one point to; for dynamic ones, every candidate."""
        if _REFERRING.isdisjoint(schema):
            return []
        if not self._base:
            self._note_all()
        base = self._base.get(id(schema), "")
        found = []
        if isinstance(ref := schema.get("$ref"), str):
            found.append(self._resolve(base, ref))
        if isinstance(ref := schema.get("$dynamicRef"), str):
            dynamic = self._dynamic.get(ref.rpartition("#")[2], [])
            found.extend(dynamic or [self._resolve(base, ref)])
        if isinstance(schema.get("$recursiveRef"), str):
            found.extend(root for root in self._roots if root.get("$recursiveAnchor") or root is self._roots[0])
        return found

    def _resolve(self, base: str, ref: str) -> Any:
        address, fragment = urldefrag(_join(base, ref))
        resource = self._resources.get(address)
        if resource is None:
            raise Unresolved(ref)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((address, fragment))
        else:
            found = _at(resource, fragment)
            address = self._base.get(id(found), address)
        if not isinstance(found, dict | bool):
            raise Unresolved(ref)
        if isinstance(found, dict):  # a place that no keyword reaches has the base of the place it was searched from
            self._base.setdefault(id(found), address)
        return found


def subschemas(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas directly inside this one, where keywords put them."""
    for keyword, value in schema.items():
        if isinstance(value, dict):
            if keyword in SINGLE:
                yield value
            elif keyword in MAPS:
                yield from value.values()
        elif isinstance(value, list) and keyword in LISTS:
            yield from value


def _join(base: str, ref: str) -> str:
    if ref.startswith("#"):  # not by urljoin, which drops a base such as urn:example:tree
        return base + ref
    try:
        return urljoin(base, ref)
    except ValueError:
        raise Unresolved(ref) from None


def _without_fragment(address: str) -> str:
    return urldefrag(address)[0]


def _at(found: Any, pointer: str) -> Any:
    """The value a JSON pointer leads to, or None."""
    for step in pointer.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < len("10000"):
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found
