"""Count the package as its peers were counted. The table is in docs/explanation/house.md."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def docstring_lines(tree: ast.AST) -> int:
    """Lines of strings that stand alone: docstrings, and those below a name that they explain."""
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


def main() -> None:
    for name in ("src/shiftwork", "tests"):
        print(name, *(f"{what}: {value}" for what, value in count(ROOT / name).items()), sep="\n  ")


if __name__ == "__main__":
    main()
