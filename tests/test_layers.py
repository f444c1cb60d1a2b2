"""Imports point inward: each folder imports only what its row allows, pure modules stay pure, no import is circular."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

FEATURES = {
    "access", "accounts", "agents", "artifacts", "batches", "budgets", "bulk", "control", "dags", "databases",
    "dead_letters", "fairness", "limits", "maintenance", "notifications", "observe", "providers", "search",
    "snapshots", "steering", "steps", "task_logs", "task_types", "triggers", "validation", "waits",
}  # fmt: skip
ENGINE = {"model", "settings", "store", "engine", "operation", "features", "tracing"} | FEATURES
INNER = ENGINE | {"queue", "upkeep", "logs", "config"}
ANY = None

# folder: (folders of shiftwork it may import besides itself, third-party packages it may import)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    # words and rules; a task carries settings, which are declared in settings/model.py
    "model": ({"settings"}, {"msgspec"}),
    "settings": ({"model", "store"}, {"msgspec"}),
    "store": ({"model"}, ANY),
    # where work comes from, and what is said of it in the log; OpenTelemetry only where it is in use
    "tracing": (set(), {"opentelemetry"}),
    "logs": ({"model", "tracing"}, {"msgspec"}),
    # which queue is meant where no one names it
    "config": ({"model"}, set()),
    # the engine and the features may import one another
    "engine": (ENGINE, ANY),
    **dict.fromkeys(FEATURES, (ENGINE, ANY)),
    "operation": (ENGINE, ANY),
    "features": (set(), set()),
    # the queue on a store, and what a process that has opened one does beside its work
    "queue": (ENGINE | {"config"}, ANY),
    "upkeep": (ENGINE | {"queue"}, ANY),
    "testing": (INNER | {"worker"}, ANY),
    "pytest_plugin": (INNER | {"testing", "worker"}, ANY),
    # what servers and clients say to each other
    "wire": (ENGINE, {"msgspec", "uvicorn"}),
    "client": (INNER | {"wire"}, ANY),
    # interfaces: they call inward and never each other; only the command line starts servers, workers and the demo
    "dashboard": (set(), set()),
    "server": (INNER | {"dashboard", "views", "wire"}, ANY),
    "worker": (INNER | {"client"}, ANY),
    "mcp": (INNER | {"client", "wire"}, ANY),
    "a2a": (INNER | {"wire"}, ANY),
    # other names over the same data, and the documents that have them; only the commands of the bridges import these
    "views": ({"model", "operation"}, {"msgspec"}),
    "compat": (INNER | {"views"}, ANY),
    "cli": (INNER | {"a2a", "client", "compat", "demo", "mcp", "prove", "server", "testing", "worker"}, ANY),
    "demo": (INNER | {"worker"}, ANY),
    "prove": (INNER | {"client", "worker"}, ANY),
    # other frameworks: they enqueue through a blocking queue, and run a worker
    "integrations": (INNER | {"client", "worker"}, ANY),
}

# Settings lie below the engine; the operations on them, as on everything, are part of it.
OPERATIONS = {"api.py", "operations.py"}

# A new id takes random bytes, and no two threads get the same one.
UNPREDICTABLE = {"model/ids.py": {"os", "threading"}}

# Modules at the root of the package that put the parts together, and may therefore import all of them.
ROOTS = {"__init__", "__main__"}

# Pure modules besides `model/`, each `model.py`, `policy.py` and `*_policy.py`.
PURE = {
    *(f"engine/{name}.py" for name in ("decide", "fingerprint", "model_choice", "rank", "retry")),
    *(f"observe/{name}.py" for name in ("alert_kinds", "metric_catalogue")),
    *(
        f"providers/{name}.py"
        for name in ("limit_signal", "provider_limits", "provider_messages", "quota_headers", "reset_times")
    ),
    *(f"settings/{name}.py" for name in ("meanings", "resolve")),
    "triggers/templates.py",
    *(f"validation/{name}.py" for name in ("commands", "expansion", "patterns", "schema", "schema_references")),
    "compat/loki_breaker_file.py",
    *(f"compat/views/{name}.py" for name in ("aegis", "coscientist", "factory", "loki", "redis")),
    "views/view.py",
}
PURE_PACKAGES = {"cronsim", "jsonschema_rs", "msgspec"}
IMPURE_STDLIB = {
    "asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One imported module and where."""

    name: str
    place: str


def imports(file: Path, source: Path) -> Iterator[Import]:
    """Every module a file imports, also inside functions and under TYPE_CHECKING; relative names resolved."""
    tree = ast.parse(file.read_text(), str(file))
    for node in ast.walk(tree):
        yield from (
            Import(name, f"{file.relative_to(source)}:{getattr(node, 'lineno', 0)}")
            for name in imported(node, file, source)
        )


def imported(node: ast.AST, file: Path, source: Path) -> list[str]:
    """The modules that one statement imports; of `from a import b` that is a.b where there is such a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = list(file.relative_to(source).parent.parts)
    base = package[: len(package) - node.level + 1] if node.level else []
    module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
    names = [f"{module}.{alias.name}" for alias in node.names]
    return [name if module == "shiftwork" or file_of(name, source) else module for name in names]


def file_of(module: str, source: Path) -> Path | None:
    path = source / module.replace(".", "/")
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None


def part_of(file: Path, source: Path) -> str:
    below = file.relative_to(source / "shiftwork")
    return below.parts[0].removesuffix(".py")


def is_pure(file: Path, source: Path) -> bool:
    below = file.relative_to(source / "shiftwork")
    named = file.name in {"model.py", "policy.py"} or file.name.endswith("_policy.py")
    return below.parts[0] == "model" or named or below.as_posix() in PURE


def violations(source: Path) -> list[str]:
    found = []
    for file in sorted((source / "shiftwork").rglob("*.py")):
        part = part_of(file, source)
        if part in ROOTS and file.parent == source / "shiftwork":
            continue
        if part not in RULES:
            found.append(f"{file.relative_to(source)}: {part} has no row in the table of layers")
            continue
        for item in imports(file, source):
            found += complaints(item, file, source)
    return found


def complaints(item: Import, file: Path, source: Path) -> Iterator[str]:
    part = part_of(file, source)
    inner, outer = RULES[part]
    if file.name in OPERATIONS:
        inner = inner | ENGINE
    top, _, rest = item.name.partition(".")
    if top == "shiftwork":
        target = rest.partition(".")[0]
        if target in RULES and target != part and target not in inner:
            yield f"{item.place}: {part} must not import {item.name}"
        elif target in ROOTS:
            yield f"{item.place}: {part} must not import {item.name}, which is outside of it"
    elif outer is not None and top not in outer and top not in sys.stdlib_module_names:
        yield f"{item.place}: {part} must not depend on {top}"
    if is_pure(file, source):
        yield from impurities(item, file, source)


def impurities(item: Import, file: Path, source: Path) -> Iterator[str]:
    top = item.name.partition(".")[0]
    if top in UNPREDICTABLE.get(file.relative_to(source / "shiftwork").as_posix(), ()):
        return
    if top == "shiftwork":
        target = file_of(item.name, source)
        if target is None or not is_pure(target, source):
            yield f"{item.place}: a pure module must not import {item.name}"
    elif top in IMPURE_STDLIB or (top not in PURE_PACKAGES and top not in sys.stdlib_module_names):
        yield f"{item.place}: a pure module must not depend on {top}"


def test_imports_follow_the_layer_table() -> None:
    assert violations(SOURCE) == []


def test_pure_modules_exist() -> None:
    assert [name for name in sorted(PURE) if not (SOURCE / "shiftwork" / name).is_file()] == []


def test_no_two_layers_import_each_other() -> None:
    """No two parts may import each other, but for the engine and its features, and settings that a task carries."""
    together = {"engine", "operation"} | FEATURES
    for part, (inner, _) in RULES.items():
        for other in inner - {part}:
            if not {part, other} <= together and {part, other} != {"model", "settings"}:
                assert part not in RULES[other][0], f"{part} and {other}"


def run_time_imports(source: Path) -> dict[str, set[str]]:
    """Which modules each module imports when it is loaded: neither under TYPE_CHECKING nor inside functions."""
    graph = {}
    for file in (source / "shiftwork").rglob("*.py"):
        parts = file.relative_to(source).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(file.read_text(), str(file))
        names = {name for node in loaded(tree.body) for name in imported(node, file, source)}
        graph[module] = {name for name in names if name.startswith("shiftwork.")}
    return graph


def loaded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from loaded(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from loaded(getattr(node, field, []))


def cycle(source: Path) -> list[str]:
    try:
        TopologicalSorter(run_time_imports(source)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_imports_are_circular() -> None:
    assert cycle(SOURCE) == []


MAX_CHAIN = 16
"""Modules that import one another in a row. A longer chain mostly hides an import for one word or type."""
LONGER = {"shiftwork.compat.bridges.redis.orchestrator": 17, "shiftwork.compat.bridges.redis.bridge_process": 18}
"""Nothing of the package imports these but the commands that start a bridge."""


def depths(source: Path) -> dict[str, int]:
    """For each module, how many are in the longest chain of imports that begins with it."""
    graph, found = run_time_imports(source), dict[str, int]()
    for module in TopologicalSorter(graph).static_order():
        found[module] = 1 + max((found[name] for name in graph.get(module, ())), default=0)
    return found


def test_chains_of_imports_stay_short() -> None:
    assert {name: depth for name, depth in depths(SOURCE).items() if depth > MAX_CHAIN} == LONGER


def test_a_circular_import_is_found(tmp_path: Path) -> None:
    package = tmp_path / "shiftwork"
    package.mkdir()
    (package / "a.py").write_text("from shiftwork import b")
    (package / "b.py").write_text("if TYPE_CHECKING:\n    import shiftwork.a\ndef f():\n    import shiftwork.a")
    assert cycle(tmp_path) == []
    (package / "b.py").write_text("try:\n    from shiftwork.a import x\nexcept ImportError:\n    pass")
    assert set(cycle(tmp_path)) == {"shiftwork.a", "shiftwork.b"}


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("model/task.py", "import shiftwork.store.sqlite", "model must not import shiftwork.store.sqlite"),
        ("model/task.py", "from ..store import verbs", "model must not import shiftwork.store"),
        ("settings/cache.py", "from shiftwork import engine", "settings must not import shiftwork.engine"),
        ("store/store.py", "import shiftwork.budgets.policy", "store must not import shiftwork.budgets.policy"),
        ("budgets/policy.py", "def f():\n    import asyncpg", "a pure module must not depend on asyncpg"),
        ("budgets/policy.py", "import asyncio", "a pure module must not depend on asyncio"),
        ("limits/window_policy.py", "from shiftwork.engine import rows", "a pure module must not import"),
        ("engine/retry.py", "from shiftwork.store.store import Tx", "a pure module must not import"),
        (
            "server/app.py",
            "from shiftwork.worker.runner import run",
            "server must not import shiftwork.worker.runner",
        ),
        ("engine/claim.py", "from shiftwork.queue import Queue", "engine must not import shiftwork.queue"),
        ("budgets/costs.py", "from shiftwork.compat import views", "budgets must not import shiftwork.compat"),
        ("compat/views/aegis.py", "from shiftwork.store import Store", "a pure module must not import shiftwork.store"),
        ("misc/thing.py", "", "misc has no row in the table of layers"),
        ("engine/engine.py", "from shiftwork.demo import main", "engine must not import shiftwork.demo"),
    ],
)
def test_forbidden_import_is_detected(tmp_path: Path, file: str, code: str, complaint: str) -> None:
    path = tmp_path / "shiftwork" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert [message for message in violations(tmp_path) if complaint in message]
