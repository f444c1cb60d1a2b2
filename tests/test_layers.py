"""Imports point inward: each part of the package may import only what its row in the table allows."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

PURE = {"core", "policy"}
INNER = PURE | {"artifacts", "copying", "store", "queue", "duties", "views", "tracing", "logs"}
ANY = None

# part: (parts of shiftwork it may import besides itself, third-party packages it may import)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    # pure: no I/O, no clock
    "core": (set(), {"msgspec"}),
    "policy": ({"core"}, {"msgspec", "jsonschema_rs", "cronsim"}),
    "views": ({"core"}, {"msgspec"}),
    # where work comes from, and what is said of it in the log; OpenTelemetry only where it is in use
    "tracing": (set(), {"opentelemetry"}),
    "logs": ({"core", "tracing"}, {"msgspec"}),
    # the engine
    "store": (PURE, ANY),
    "artifacts": (PURE, ANY),
    "copying": (PURE | {"store"}, ANY),
    "queue": (PURE | {"artifacts", "copying", "store", "tracing"}, ANY),
    "duties": (PURE | {"artifacts", "copying", "store", "queue", "tracing"}, ANY),
    "sinks": (PURE | {"store", "queue"}, ANY),
    "testing": (INNER | {"worker"}, ANY),
    # what servers and clients say to each other
    "wire": (PURE | {"store", "queue"}, {"msgspec", "uvicorn"}),
    "client": (INNER | {"wire"}, ANY),
    # doors: they call inward and never each other; the command line alone starts servers, workers and the demo
    "dashboard": (set(), set()),
    "server": (INNER | {"dashboard", "sinks", "wire"}, ANY),
    "worker": (INNER | {"client", "sinks"}, ANY),
    "mcp": (INNER | {"client", "sinks", "wire"}, ANY),
    "bridges": (INNER, ANY),
    "cli": (INNER | {"bridges", "client", "server", "worker", "mcp", "sinks", "demo", "prove", "testing"}, ANY),
    "demo": (INNER | {"worker"}, ANY),
    "prove": (INNER | {"worker"}, ANY),
}

# Modules at the root of the package that put the parts together, and may therefore import all of them.
ROOTS = {"__init__", "__main__"}


@dataclass(frozen=True)
class Import:
    """One imported module and where."""

    name: str
    place: str


def imports(file: Path, source: Path) -> Iterator[Import]:
    """Every module a file imports, also inside functions and under TYPE_CHECKING; relative names resolved."""
    package = list(file.relative_to(source).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        place = f"{file.relative_to(source)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, place) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from shiftwork import queue` imports a part, and so counts as shiftwork.queue.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "shiftwork" else [module]
            yield from (Import(name, place) for name in names)


def part_of(file: Path, source: Path) -> str:
    below = file.relative_to(source / "shiftwork")
    return below.parts[0].removesuffix(".py")


def violations(source: Path) -> list[str]:
    found = []
    for file in sorted((source / "shiftwork").rglob("*.py")):
        part = part_of(file, source)
        if part in ROOTS and file.parent == source / "shiftwork":
            continue
        if part not in RULES:
            found.append(f"{file.relative_to(source)}: {part} has no row in the table of layers")
            continue
        inner, outer = RULES[part]
        for item in imports(file, source):
            top, _, rest = item.name.partition(".")
            if top == "shiftwork":
                target = rest.partition(".")[0]
                if target in RULES and target != part and target not in inner:
                    found.append(f"{item.place}: {part} must not import {item.name}")
                elif target in ROOTS:
                    found.append(f"{item.place}: {part} must not import {item.name}, which is outside of it")
            elif outer is not None and top not in outer and top not in sys.stdlib_module_names:
                found.append(f"{item.place}: {part} must not depend on {top}")
    return found


def test_imports_point_inward() -> None:
    assert violations(SOURCE) == []


def test_verbs_do_not_know_the_face_they_are_called_by() -> None:
    queue = SOURCE / "shiftwork" / "queue"
    inside = [file for file in queue.rglob("*.py") if file.parent.name != "face" and file != queue / "queue.py"]
    found = [each for file in inside for each in imports(file, SOURCE)]
    assert found
    assert [each for each in found if each.name.startswith("shiftwork.queue.face")] == []


def test_the_table_itself_points_inward() -> None:
    """No two parts may import each other."""
    for part, (inner, _) in RULES.items():
        for other in inner:
            assert part not in RULES[other][0], f"{part} and {other}"


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("core/task.py", "import shiftwork.store.sqlite", "core must not import shiftwork.store.sqlite"),
        ("core/task.py", "from ..store import verbs", "core must not import shiftwork.store"),
        ("policy/retry.py", "from shiftwork import queue", "policy must not import shiftwork.queue"),
        ("policy/retry.py", "def f():\n    import asyncpg", "policy must not depend on asyncpg"),
        (
            "server/app.py",
            "from shiftwork.worker.runner import run",
            "server must not import shiftwork.worker.runner",
        ),
        ("views/aegis.py", "from shiftwork.store import Store", "views must not import shiftwork.store"),
        ("misc/thing.py", "", "misc has no row in the table of layers"),
        ("queue/engine.py", "from shiftwork.demo import main", "queue must not import shiftwork.demo"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, code: str, complaint: str) -> None:
    path = tmp_path / "shiftwork" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert [message for message in violations(tmp_path) if complaint in message]
