"""Finds the operation for a path and a method by a tree of segments: trying all routes took a quarter of a call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send


class _Node:
    """A prefix of paths."""

    __slots__ = ("apps", "children", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        """The node for a segment that is a parameter."""
        self.apps: dict[str, tuple[ASGIApp, tuple[str, ...]]] = {}
        """By method: the app that answers, and the names of the path's parameters."""


class RouteTable:
    """Routes by method and path. A fixed segment takes precedence over a parameter; a parameter is never empty."""

    def __init__(self, routes: Iterable[tuple[str, str, ASGIApp]]) -> None:
        self._root = _Node()
        self._fixed: dict[tuple[str, str], ASGIApp] = {}
        """Paths without parameters, which take precedence."""
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
        """The app that answers a request, and the parameters in its path."""
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
    """Serves operations directly from the route table, and everything else through Starlette."""

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
    """The path as sent, so that a name in it may contain a slash, encoded as `%2F`."""
    return str(scope["raw_path"].decode("ascii"))
