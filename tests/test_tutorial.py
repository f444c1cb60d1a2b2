"""The tutorial works as written: in one folder, its commands print the output that it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.common import free_port

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
_PART = re.compile(r"(?:`(\S+)`:\n\n)?```(python|json|sh|text)\n(.*?)```", re.DOTALL)


def looks_like(expected: str) -> re.Pattern[str]:
    """Return the pattern of a line of the page: spaces count as one, and … matches anything."""
    parts = [r"\s+".join(re.escape(word) for word in part.split()) for part in expected.split("…")]
    return re.compile(r"\s*" + r"\s*.*?\s*".join(parts) + r"\s*")


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        ("status  ready", "status ready", True),
        ("task_… ready", "task_01M7 ready", True),
        ("task_… ready", "task_01M7 pending", False),
        ("… bees", "a  b  bees", True),
    ],
)
def test_printed_line_is_compared_with_placeholders(expected: str, printed: str, *, fits: bool) -> None:
    assert bool(looks_like(expected).fullmatch(printed)) is fits


@pytest.mark.timeout(300)  # forty commands, each a process of its own
def test_tutorial_commands_print_what_it_says(tmp_path: Path) -> None:
    port = str(free_port())
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    printed: list[str] = []
    parts = _PART.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for _, kind, _ in parts].count("text") == 12
    for name, kind, code in parts:
        if kind in {"python", "json"}:
            (tmp_path / name).write_text(code, encoding="utf-8")
        elif kind == "sh":
            line = ["bash", "-meuo", "pipefail", "-c", code.replace("8080", port)]
            done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
            printed = done.stdout.splitlines()
        else:
            assert missing(code, printed) == []


def missing(expected: str, printed: list[str]) -> list[str]:
    """The lines of the page that were not printed, in its order, among those that were."""
    rest = iter(printed)
    return [line for line in expected.splitlines() if not any(looks_like(line).fullmatch(each) for each in rest)]
