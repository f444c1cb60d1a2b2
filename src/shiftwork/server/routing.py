"""Finds the operation that a path and a method name, segment by segment: trying all routes took a quarter of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send


class _Node:
    """What may follow a part of a path."""

    __slots__ = ("apps", "children", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        """What follows a segment that names something."""
        self.apps: dict[str, tuple[ASGIApp, tuple[str, ...]]] = {}
        """By method, what answers here, and the names of the path's parameters."""


class RouteTable:
    """Routes by method and path. A fixed segment goes before a parameter; a parameter is never empty."""

    def __init__(self, routes: Iterable[tuple[str, str, ASGIApp]]) -> None:
        self._root = _Node()
        self._fixed: dict[tuple[str, str], ASGIApp] = {}
        """Paths without a parameter, which go before all others."""
        for method, path, app in routes:
            self._add(method, path, app)
            if "{" not in path:
                self._fixed[method, path] = app

    def _add(self, method: str, path: str, app: ASGIApp) -> None:
        node, names = self._root, list[str]()
        for segment in path.split("/"):
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        node.apps[method] = app, tuple(names)

    def find(self, method: str, path: str) -> tuple[ASGIApp, dict[str, str]] | None:
        """What answers a request, and the parameters in its path."""
        if (fixed := self._fixed.get((method, path))) is not None:
            return fixed, {}
        return self._find(self._root, method, path.split("/"), 0, ())

    def _find(
        self, node: _Node, method: str, segments: list[str], place: int, values: tuple[str, ...]
    ) -> tuple[ASGIApp, dict[str, str]] | None:
        if place == len(segments):
            found = node.apps.get(method)
            return None if found is None else (found[0], dict(zip(found[1], values, strict=True)))
        segment = segments[place]
        child = node.children.get(segment)
        answer = None if child is None else self._find(child, method, segments, place + 1, values)
        if answer is None and node.parameter is not None and segment:
            answer = self._find(node.parameter, method, segments, place + 1, (*values, segment))
        return answer


class Application(Starlette):
    """Serves operations straight from the route table, and everything else as Starlette does."""

    def __init__(self, operations: RouteTable, **options: Any) -> None:
        super().__init__(**options)
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._operations.find(scope["method"], path := _raw_path(scope)) if scope["type"] == "http" else None
        if found is None:
            await super().__call__(scope, receive, send)
        else:
            app, parameters = found
            await app({**scope, "path": path, "app": self, "path_params": parameters}, receive, send)


def _raw_path(scope: Scope) -> str:
    """The path as it was sent, so that a name in it may hold a slash, written `%2F`."""
    return str(scope["raw_path"].decode("ascii"))
