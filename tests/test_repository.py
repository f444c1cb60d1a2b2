"""Rules for the whole repository: no download addresses, size limits, no unexplained lint exception."""

import ast
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAX_LINES_OF_A_FILE = 600
MAX_LINES_OF_A_FUNCTION = 60

# Files that any feature may have; each other name stands for one file, so that a search finds it.
SHARED_NAMES = {"__init__", "__main__", "api", "maintenance", "model", "operations", "policy"}

# Exact versions are in constraints.txt; from where they come is the business of anyone who installs them.
# (Each pattern is written so that it does not match itself.)
ADDRESSES = [
    re.compile(r"https?://[^\s\"'<>)]+\.(?:whl|tar\.gz|tgz|deb)\b"),
    re.compile(r"\b(?:files\.pythonhosted|registry\.npmjs|(?:test\.)?pypi)\.(?:org|com)\b"),
    re.compile(r"--(?:extra-)?index-url[ =]\S"),
]

EXCUSE = re.compile(r"#\s*(noqa\b(?::\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[a-z, -]+\])?)(.*)")


def files() -> list[Path]:
    """Every file that is in the repository or would be added to it."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        return sorted(path for name in set(listed.stdout.split("\0")) - {""} if (path := ROOT / name).is_file())
    # An unpacked archive has no git; then the folders that we write ourselves stand for all.
    return sorted(path for name in ("src", "tests") for path in (ROOT / name).rglob("*.*") if path.is_file())


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def source_files() -> list[Path]:
    return [path for path in python_files() if path.is_relative_to(ROOT / "src")]


def lines() -> Iterator[tuple[str, str]]:
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_no_file_names_a_download_address() -> None:
    assert [place for place, line in lines() if any(address.search(line) for address in ADDRESSES)] == []


def test_no_file_has_a_conflict_marker() -> None:
    marker = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [str(path) for path in files() if marker.search(path.read_text(encoding="utf-8", errors="replace"))] == []


def test_constraints_are_plain_versions() -> None:
    text = (ROOT / "constraints.txt").read_text().splitlines()
    wrong = [line for line in text if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    assert wrong == []


def test_source_files_stay_under_the_line_limit() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files()}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES_OF_A_FILE} == {}


def test_source_files_have_names_of_their_own() -> None:
    names = Counter(path.stem for path in source_files() if path.suffix == ".py")
    assert [name for name, count in names.items() if count > 1 and name not in SHARED_NAMES] == []


def test_functions_stay_under_the_line_limit() -> None:
    long = []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_LINES_OF_A_FUNCTION:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {size} lines")
    assert long == []


def silent(line: str) -> bool:
    """Return whether a line disables a check without naming the check and the reason."""
    excuse = EXCUSE.search(line)
    if excuse is None:
        return False
    names_the_check = "[" in excuse[1] if excuse[1].startswith("type") else ":" in excuse[1]
    return not (names_the_check and re.search(r"[A-Za-z]{3,}", excuse[2]))


def test_every_lint_exception_has_a_reason() -> None:
    found = []
    for path in python_files():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if silent(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = 1", False),
        ("x = 1  # noqa", True),
        ("x = 1  # noqa: S101", True),
        ("x = 1  # noqa: S101 -- the caller has checked it", False),
        ("x = 1  # noqa: S101, S102", True),
        ("x = 1  # type: ignore", True),
        ("x = 1  # type: ignore[arg-type]", True),
        ("x = 1  # type: ignore[arg-type]  # the stubs are wrong here", False),
        ("x = 1  # type: ignore  # the stubs are wrong here", True),
    ],
)
def test_lint_exception_without_reason_is_detected(line: str, *, expected: bool) -> None:
    assert silent(line) is expected


@pytest.mark.parametrize(
    ("fails", "runs", "passes"),
    [
        ((), ["check", "test"], True),
        (("check",), ["check", "test"], False),
        (("test",), ["check", "test", "test WORKERS=0"], True),
        (("test", "test WORKERS=0"), ["check", "test", "test WORKERS=0"], False),
    ],
)
def test_gate_passes_only_when_checks_and_tests_pass(
    tmp_path: Path, fails: tuple[str, ...], runs: list[str], *, passes: bool
) -> None:
    """`.ci/run` with a `make` that records its targets, and fails where the case says so."""
    gate = tmp_path / ".ci" / "run"
    gate.parent.mkdir()
    gate.write_bytes((ROOT / ".ci" / "run").read_bytes())
    make = tmp_path / "make"
    cases = "".join(f"'{each}') exit 1 ;;\n" for each in fails)
    make.write_text(f'#!/bin/sh\nasked="$1${{2:+ $2}}"\necho "$asked" >> asked\ncase "$asked" in\n{cases}esac\n')
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(gate)], env=environment, capture_output=True, text=True, check=False)
    first, *others = (tmp_path / "asked").read_text().splitlines()
    assert first == ".venv/.ready"  # once, before the checks and the tests run at the same time
    assert sorted(others) == runs
    assert (done.returncode == 0) == passes
