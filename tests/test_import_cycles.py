"""No module imports itself through others, not even only for annotations or inside a function."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

Graph = Mapping[str, set[str]]
"""By module, the modules that it imports."""


def module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, source: Path, known: set[str]) -> Iterator[str]:
    """Return our modules that this file imports; a package only if one of its own names is imported."""
    package = list(file.relative_to(source).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                below = f"{module}.{alias.name}"
                yield from [below] if below in known else [module] if module in known else []


def graph_of(source: Path) -> Graph:
    files = {module_name(file, source): file for file in sorted((source / "shiftwork").rglob("*.py"))}
    return {name: set(imported(file, source, set(files))) - {name} for name, file in files.items()}


def cycles(graph: Graph) -> list[list[str]]:
    """Return groups of modules that import each other, directly or indirectly (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        path.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], index[other])
        if lowest[name] == index[name]:
            place = path.index(name)
            group = sorted(path[place:])
            del path[place:]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_no_module_imports_itself_through_others() -> None:
    assert cycles(graph_of(SOURCE)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import shiftwork.engine.second",
        "from shiftwork.engine import second",
        "from shiftwork.engine.second import name",
        "from . import second",
        "from .second import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shiftwork.engine.second import name",
        "def call():\n    from shiftwork.engine.second import name",
    ],
)
def test_a_cycle_is_found_however_it_is_written(tmp_path: Path, code: str) -> None:
    folder = tmp_path / "shiftwork" / "engine"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", "first": code, "second": "from shiftwork.engine import third"}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "third.py").write_text("import shiftwork.engine.first")
    three = [f"shiftwork.engine.{name}" for name in ("first", "second", "third")]
    assert cycles(graph_of(tmp_path)) == [three]


def test_modules_that_do_not_import_each_other_form_no_cycle(tmp_path: Path) -> None:
    folder = tmp_path / "shiftwork"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text("from shiftwork import second\nimport shiftwork.third")
    (folder / "second.py").write_text("import shiftwork.third")
    (folder / "third.py").write_text("import asyncio")
    assert cycles(graph_of(tmp_path)) == []
