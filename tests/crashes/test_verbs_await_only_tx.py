"""A verb awaits only its transaction: on SQLite it is run straight through, and on PostgreSQL it may be run again.

So nothing in the modules of verbs may wait for anything else. The modules that stand between callers and verbs may.
"""

import ast
from pathlib import Path

import pytest

QUEUE = Path(__file__).resolve().parents[2] / "src" / "shiftwork" / "queue"
DUTIES = [QUEUE.parent / "duties" / name for name in ("duties.py", "reclaim.py", "clock.py")]
AROUND = {
    "queue.py", "coalesce.py", "parking.py", "log.py", "protection/room.py", "content/transfer.py",
    "observation/measuring.py", "bridged/folder.py",
}  # fmt: skip
"""What stands between callers and verbs, besides the public face."""

BEFORE_A_VERB = {"get", "intern"}
"""Functions of books that open a transaction of their own, before any verb."""

WAITING = {"asyncio", "threading", "time", "socket", "subprocess", "concurrent", "anyio"}
CLOCKS = {"monotonic", "perf_counter"}
"""Reading a clock of this process is no waiting; what is stored comes from `tx.now`."""


def verbs() -> list[Path]:
    inside = [file for file in sorted(QUEUE.rglob("*.py")) if file.parent.name != "face"]
    return [*(file for file in inside if file.relative_to(QUEUE).as_posix() not in AROUND), *DUTIES]


def complaints(source: str, name: str) -> list[str]:
    found = []
    tree = ast.parse(source)
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
    return found + [c for function in functions(tree) for c in foreign_awaits(function, name)]


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


@pytest.mark.parametrize("file", verbs(), ids=lambda file: file.name)
def test_a_verb_awaits_only_its_transaction(file: Path) -> None:
    assert complaints(file.read_text(), file.name) == []


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
def test_a_wait_is_found(bad: str) -> None:
    assert complaints(bad, "bad.py")
