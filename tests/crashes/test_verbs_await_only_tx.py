"""A verb awaits only its transaction: SQLite runs it straight through, and PostgreSQL may repeat it.

So nothing in the modules of verbs may wait for anything else. The modules that stand between callers and verbs may.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "shiftwork"
FOLDERS = (
    "engine", "agents", "artifacts", "budgets", "compat/external", "dags", "dead_letters", "fairness", "limits",
    "notifications", "observe", "providers", "snapshots", "steps", "triggers", "validation", "waits",
)  # fmt: skip
VERBS = {
    "access/operations.py", "maintenance/clock.py", "maintenance/jobs.py", "maintenance/reclaim.py", "model/check.py",
    "settings/cache.py",
}  # fmt: skip
AROUND = {
    "agents/presence.py",
    *(f"artifacts/{name}.py" for name in ("blob_folder", "bucket", "maintenance", "spool", "transfer")),
    "compat/external/folder_claims.py",
    "compat/external/loki_folder.py",
    *(f"engine/{name}.py" for name in ("claim_requests", "claim_waiters", "coalesce", "event_log", "event_waiters")),
    *(f"engine/{name}.py" for name in ("prepare", "result_waiters")),
    *(f"notifications/{name}.py" for name in ("apprise_sinks", "dial", "mail", "maintenance", "public_url", "sender")),
    *(f"notifications/{name}.py" for name in ("slack_actions", "webhooks")),
    *(f"observe/{name}.py" for name in ("kept_counts", "maintenance", "metrics_cache")),
    *(f"snapshots/{name}.py" for name in ("row_batches", "copy", "maintenance", "postgres_copy")),
    *(f"snapshots/{name}.py" for name in ("snapshot_file", "snapshot_folder", "sqlite_copy")),
    *(f"triggers/{name}.py" for name in ("hooks", "maintenance")),
}
"""What stands between callers and verbs; of these files only the functions that take a transaction are verbs."""

BEFORE_A_VERB = {"get", "intern"}
"""Functions of books that open a transaction of their own, before any verb."""

WAITING = {"asyncio", "threading", "time", "socket", "subprocess", "concurrent", "anyio"}
CLOCKS = {"monotonic", "perf_counter"}
"""Reading a clock of this process is not a waiting; what is stored comes from `tx.now`."""


def files() -> list[Path]:
    inside = [file for folder in FOLDERS for file in sorted((SOURCE / folder).rglob("*.py"))]
    return [*inside, *(SOURCE / name for name in sorted(VERBS))]


def is_around(file: Path) -> bool:
    """An `api.py` declares operations, and its own methods run before them; verbs are in `operations.py`."""
    return file.name in {"api.py", "operations.py"} or file.relative_to(SOURCE).as_posix() in AROUND


def complaints(source: str, name: str) -> list[str]:
    """Check a file that contains only verbs."""
    tree = ast.parse(source)
    return waits(tree, name) + [c for function in functions(tree) for c in foreign_awaits(function, name)]


def complaints_of_verbs(source: str, name: str) -> list[str]:
    """Check the functions with a transaction parameter in a file that contains others, too."""
    verbs = [function for function in functions(ast.parse(source)) if takes_transaction(function)]
    return [c for verb in verbs for c in waits(verb, name) + foreign_awaits(verb, name)]


def takes_transaction(function: ast.AsyncFunctionDef) -> bool:
    return any(each.arg in {"tx", "work"} for each in (*function.args.posonlyargs, *function.args.args))


def waits(tree: ast.AST, name: str) -> list[str]:
    found = []
    for node in ast.walk(tree):
        place = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found += [f"{place} imports {n}" for n in names if n.split(".")[0] in WAITING - {"time"}]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whose, what = ast.unparse(node.func.value), node.func.attr
            if whose == "time" and what not in CLOCKS:
                found.append(f"{place} calls time.{what}")
        elif isinstance(node, ast.AsyncWith | ast.AsyncFor):
            found.append(f"{place} waits in an async block")
    return found


def functions(tree: ast.Module) -> list[ast.AsyncFunctionDef]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name not in BEFORE_A_VERB
    ]


def foreign_awaits(function: ast.AsyncFunctionDef, name: str) -> list[str]:
    """Awaits of a store, of a future or of a task; another verb's coroutine is checked where it is defined."""
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Await):
            awaited = ast.unparse(node.value)
            if not isinstance(node.value, ast.Call) or ".store." in awaited or awaited.startswith("store."):
                found.append(f"{name}:{node.lineno} awaits {awaited}")
    return found


@pytest.mark.parametrize("file", files(), ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_verb_awaits_only_its_transaction(file: Path) -> None:
    look = complaints_of_verbs if is_around(file) else complaints
    assert look(file.read_text(), file.name) == []


@pytest.mark.parametrize(
    "bad",
    [
        "import asyncio",
        "from concurrent.futures import Future",
        "async def verb(tx):\n    await engine.store.run(other)",
        "async def verb(tx):\n    await future",
        "async def verb(tx):\n    async with lock: pass",
        "import time\nasync def verb(tx):\n    time.sleep(1)",
    ],
)
def test_forbidden_await_is_detected(bad: str) -> None:
    assert complaints(bad, "bad.py")


def test_forbidden_await_is_detected_next_to_an_allowed_one() -> None:
    source = "import asyncio\nasync def job(engine):\n    await engine.store.run(verb)\n"
    assert complaints_of_verbs(source, "maintenance.py") == []
    assert complaints_of_verbs(source + "async def verb(tx):\n    await engine.store.run(other)", "maintenance.py")
