"""Writes the types of `SyncQueue`: every method of `AnyQueue` and of its namespaces, blocking."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
from pathlib import Path
from typing import Any

from shiftwork.operation.declare import Namespace
from shiftwork.operation.interface import AnyQueue

STUB = Path(__file__).resolve().parents[1] / "src" / "shiftwork" / "client" / "blocking.pyi"
HEADER = """# Generated from the declarations by `make docs`; do not edit.
"""
QUEUE = """class SyncQueue:
    @classmethod
    def open(
        cls,
        url: str | None = ...,
        *,
        workspace: str | None = ...,
        actor: str = ...,
        token: str | None = ...,
        patience_sec: float = ...,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    @property
    def workspace(self) -> str: ...
    def now(self) -> float: ...
    def in_workspace(self, name: str) -> SyncQueue: ...
    def as_caller(self, actor: str, request_id: str | None = ...) -> SyncQueue: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
"""


WRITTEN = frozenset({"open", "now", "in_workspace", "as_caller", "close"})
"""Methods that the stub already contains."""

Home = tuple[str, str]
"""A module, and a name that it defines."""


def blocking_stub() -> str:
    """Return the text of the stub."""
    names = _Names()
    kinds = {name: type(getattr(AnyQueue(None), name)) for name in _namespaces()}  # type: ignore[arg-type]  # not executed
    for kind in (*kinds.values(), AnyQueue):
        for _, method in _methods(kind):
            names.note(method)
    parts = [f"class _{kind.__name__}:\n{_written(kind, names)}" for kind in kinds.values()]
    properties = [f"    @property\n    def {name}(self) -> _{kind.__name__}: ...\n" for name, kind in kinds.items()]
    parts.append(QUEUE + "".join(properties) + _written(AnyQueue, names))
    return f"{HEADER}\n{names.imports()}\n\n" + "\n".join(parts)


def _namespaces() -> list[str]:
    found = inspect.getmembers(AnyQueue, lambda value: isinstance(value, functools.cached_property))
    return [name for name, _ in found]


def _methods(kind: type) -> list[tuple[str, Any]]:
    """Return its public methods, `list` last: it would shadow the builtin in methods after it."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Namespace) and base is not Namespace:
            found |= {name: inspect.unwrap(value) for name, value in vars(base).items() if inspect.isfunction(value)}
    public = [(name, method) for name, method in found.items() if not name.startswith("_") and name not in WRITTEN]
    return sorted(public, key=lambda item: item[0] == "list")


def _written(kind: type, names: _Names) -> str:
    return "".join(_method(name, method, names) for name, method in _methods(kind))


def _method(name: str, method: Any, names: _Names) -> str:
    module = method.__module__
    shown: list[str] = []
    for p in inspect.signature(method).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = "**" if p.kind is p.VAR_KEYWORD else ""
        hint = "" if p.annotation is p.empty else f": {names.rewritten(p.annotation, module)}"
        shown.append(f"{stars}{p.name}{hint}{'' if p.default is p.empty else ' = ...'}")
    answer = names.rewritten(method.__annotations__["return"], module)
    return f"    def {name}({', '.join(shown)}) -> {answer}: ...\n"


class _Names:
    """The names in annotations: imported from the defining module, under an alias if two names collide."""

    def __init__(self) -> None:
        self._homes: set[Home] = {("types", "TracebackType"), ("typing", "Self")}

    def note(self, method: Any) -> None:
        for annotation in method.__annotations__.values():
            self._homes |= {_home(name, method.__module__) for name in _used(annotation)}

    def imports(self) -> str:
        lines = [
            f"from {module} import {name}" + (f" as {alias}" if (alias := self._alias((module, name))) != name else "")
            for module, name in sorted(self._homes)
        ]
        return "\n".join(lines)

    def rewritten(self, annotation: str, module: str) -> str:
        aliases = {name: self._alias(_home(name, module)) for name in _used(annotation)}

        class Rename(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.Name:  # the library's name
                return ast.Name(aliases.get(node.id, node.id))

        return ast.unparse(Rename().visit(ast.parse(annotation, mode="eval")))

    def _alias(self, home: Home) -> str:
        module, name = home
        alike = [other for other in self._homes if other[1] == name]
        return name if len(alike) == 1 else f"{module.split('.')[1]}_{name}"


def _used(annotation: str) -> set[str]:
    tree = ast.parse(annotation, mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not hasattr(builtins, node.id)}


def _home(name: str, module: str) -> Home:
    """Return where a name used by a module is defined, with async types replaced by their blocking counterparts."""
    if name == "AsyncIterator":
        return "collections.abc", "Iterator"
    if name in {"TaskHandle", "DagHandle"}:
        return "shiftwork.operation.blocking_handles", f"Sync{name}"
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return str(node.module), name
    return module, name


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def write() -> None:
    STUB.write_text(blocking_stub(), encoding="utf-8")
