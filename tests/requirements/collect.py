"""Find which tests claim which requirement, by reading the source (nothing is imported or run).

Counted are the marks ``pytest.mark.requirement("F-132", ...)`` and ``requirement("C-104")``

* as a decorator of a test function or test class,
* in ``pytestmark`` of a module or class, alone or in a list,
* in ``pytest.param(..., marks=...)``.

A test that is switched off with ``skip`` or ``xfail`` shows nothing, so its marks are not counted.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.requirements.ledger import Row

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests", "bench")

_OFF = frozenset({"skip", "xfail"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Scan:
    """What the source says: requirement id -> test names, and marks that cannot be counted."""

    marks: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, row_id: str, node_name: str) -> None:
        names = self.marks.setdefault(row_id, [])
        if node_name not in names:
            names.append(node_name)


def _name(node: ast.expr) -> str:
    """Last part of a dotted name, looking through a call: ``pytest.mark.skip(...)`` -> ``skip``."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _flatten(node: ast.expr) -> Iterator[ast.expr]:
    """One mark, or the marks of a list or tuple."""
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _flatten(element)
    else:
        yield node


def _pytestmark(body: Iterable[ast.stmt]) -> list[ast.expr]:
    found: list[ast.expr] = []
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if statement.value is not None and any(_name(target) == "pytestmark" for target in targets):
            found.extend(_flatten(statement.value))
    return found


class _Visitor(ast.NodeVisitor):
    def __init__(self, path: str, scan: Scan) -> None:
        self.path = path
        self.scan = scan
        self.scope: list[str] = []
        self.in_function = False
        self.off = False
        file_name = path.rpartition("/")[2]
        self.in_bench = path.startswith("bench/")
        self.in_test_file = file_name.startswith("test_") or file_name.endswith("_test.py")

    def _record(self, marks: Iterable[ast.expr]) -> None:
        node_name = "::".join([self.path, *self.scope])
        for mark in marks:
            if not isinstance(mark, ast.Call) or _name(mark) != "requirement":
                continue
            if not mark.args or mark.keywords:
                self._problem(mark, "a requirement mark needs one or more ids")
            for argument in mark.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    self._problem(mark, "requirement ids must be written as plain strings")
                elif not self.off:
                    self.scan.add(argument.value, node_name)

    def _problem(self, node: ast.expr, text: str) -> None:
        self.scan.problems.append(f"{self.path}:{node.lineno}: {text}")

    def _runs(self, node: ast.Module | ast.ClassDef | _Function) -> bool:
        """Whether a mark on this node ends up on something that is run."""
        if self.in_bench:
            return True
        if self.in_function:
            return False
        if isinstance(node, ast.Module):
            return self.in_test_file
        if isinstance(node, ast.ClassDef):
            return True
        in_class = bool(self.scope)
        return node.name.startswith("test") and (in_class or self.in_test_file)

    def _enter(self, node: ast.Module | ast.ClassDef | _Function, marks: list[ast.expr]) -> None:
        runs = self._runs(node)
        saved = self.off, self.in_function
        if not isinstance(node, ast.Module):
            self.scope.append(node.name)
        self.off = self.off or any(_name(mark) in _OFF for mark in marks)
        if runs:
            self._record(marks)
        else:
            for mark in marks:
                if isinstance(mark, ast.Call) and _name(mark) == "requirement":
                    self._problem(mark, "requirement mark on something that is not a test")
        self.in_function = self.in_function or isinstance(node, _Function)
        self.generic_visit(node)
        self.off, self.in_function = saved
        if not isinstance(node, ast.Module):
            self.scope.pop()

    def visit_Module(self, node: ast.Module) -> None:
        self._enter(node, _pytestmark(node.body))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, [*node.decorator_list, *_pytestmark(node.body)])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node, node.decorator_list)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node, node.decorator_list)

    def visit_Assign(self, node: ast.Assign) -> None:
        """A table of cases in a constant is named after the constant."""
        self._visit_table(node, node.targets[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_table(node, node.target)

    def _visit_table(self, node: ast.Assign | ast.AnnAssign, target: ast.expr) -> None:
        self.scope.append(_name(target) or "?")
        self.generic_visit(node)
        self.scope.pop()

    def visit_Call(self, node: ast.Call) -> None:
        if _name(node) == "param":
            marks = [mark for k in node.keywords if k.arg == "marks" for mark in _flatten(k.value)]
            if not any(_name(mark) in _OFF for mark in marks):
                self._record(marks)
        self.generic_visit(node)


def scan_source(source: str, path: str, scan: Scan) -> None:
    """Add the marks of one file; ``path`` is relative to the project, with forward slashes."""
    try:
        tree = ast.parse(source, path)
    except SyntaxError as error:
        scan.problems.append(f"{path}:{error.lineno}: cannot be read: {error.msg}")
        return
    _Visitor(path, scan).visit(tree)


def scan(root: Path = ROOT) -> Scan:
    """Read every Python file under ``tests`` and ``bench``."""
    result = Scan()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "requirement" in source:
                scan_source(source, path.relative_to(root).as_posix(), result)
    return result


def collect(root: Path = ROOT) -> dict[str, list[str]]:
    """Requirement id -> names of the tests marked with it (``path::Class::name``)."""
    return scan(root).marks


def faults(ledger: Mapping[str, Row], result: Scan) -> list[str]:
    """Everything wrong with the marks: unreadable or misplaced ones, unknown ids, context rows."""
    found = list(result.problems)
    for row_id, names in sorted(result.marks.items()):
        where = ", ".join(names)
        if row_id not in ledger:
            found.append(f"{where}: unknown requirement {row_id!r}")
        elif ledger[row_id].kind == "context":
            found.append(f"{where}: {row_id} is background, there is nothing to show")
    return found
