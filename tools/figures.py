"""Measures the package like its peers in docs/explanation/house.md, which has the table."""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import msgspec

from shiftwork.server.openapi import document
from shiftwork.server.routes import ENDPOINTS
from tests.test_layers import run_time_imports
from tests.test_repository import SHARED_NAMES

ROOT = Path(__file__).resolve().parents[1]
LOADED = "import sys, shiftwork.client; print(sum(name.startswith('shiftwork') for name in sys.modules))"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def docstring_lines(tree: ast.AST) -> int:
    """Count the lines of docstrings, including those below the attribute that they explain."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    texts = (value for value in alone if isinstance(value, ast.Constant) and isinstance(value.value, str))
    return sum((text.end_lineno or text.lineno) - text.lineno + 1 for text in texts)


def comments(source: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(source).readline))


def count(folder: Path) -> dict[str, object]:
    files = sorted(folder.rglob("*.py"))
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(source) for file, source in sources.items()}
    lines = {file: source.count("\n") for file, source in sources.items()}
    total = sum(lines.values())
    spans = sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1 for tree in trees.values() for node in functions(tree)
    )
    parameters = [len(node.args.args) + len(node.args.kwonlyargs) for t in trees.values() for node in functions(t)]
    return {
        "files": len(files),
        "lines": total,
        "comments, %": round(100 * sum(map(comments, sources.values())) / total, 1),
        "docstrings, %": round(100 * sum(map(docstring_lines, trees.values())) / total, 1),
        "median file": int(statistics.median(lines.values())),
        "largest file": max(lines.values()),
        "median function": int(statistics.median(spans)),
        "p95 function": spans[int(0.95 * len(spans))],
        "longest function": spans[-1],
        "mean parameters": round(statistics.mean(parameters), 1),
    }


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of imports from a module."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        known = (chains[name] for name in graph.get(module, ()) if name in chains)
        chains[module] = [module, *max(known, key=len, default=[])]
    return max(chains.values(), key=len)


def shape() -> dict[str, object]:
    """How the package hangs together."""
    names = Counter(file.stem for file in (ROOT / "src").rglob("*.py"))
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    chain = longest_chain(run_time_imports(ROOT / "src"))
    return {
        "modules that import shiftwork.client loads": int(loaded.stdout),
        "bytes of /openapi.json": len(msgspec.json.encode(document(ENDPOINTS))),
        "names of several files": sorted(name for name, n in names.items() if n > 1 and name not in SHARED_NAMES),
        "longest chain of imports": f"{len(chain)}: {' → '.join(name.removeprefix('shiftwork.') for name in chain)}",
    }


def main() -> None:
    for name in ("src/shiftwork", "tests"):
        print(name, *(f"{what}: {value}" for what, value in count(ROOT / name).items()), sep="\n  ")
    print("shape", *(f"{what}: {value}" for what, value in shape().items()), sep="\n  ")


if __name__ == "__main__":
    main()
