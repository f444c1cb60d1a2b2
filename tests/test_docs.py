"""The documentation is true: generated pages match the code, every snippet runs, every public name is described."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import shiftwork
from shiftwork import Queue
from tools import docs

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_SNIPPET = re.compile(r"```(python|sql)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)\)")


def snippets(language: str) -> list[pytest.param]:  # type: ignore[valid-type]  # a factory, not a type
    return [
        pytest.param(code, id=f"{page.relative_to(ROOT)}:{place}")
        for page in PAGES
        for place, (kind, code) in enumerate(_SNIPPET.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


def test_generated_pages_are_up_to_date() -> None:
    assert docs.outdated() == []


@pytest.mark.parametrize("code", snippets("python"))
def test_a_python_snippet_runs_in_an_empty_folder(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = re.search(r"print\(.*#\s*(.+)$", code, re.MULTILINE)
    assert expected is None or expected[1].strip() in done.stdout


@pytest.mark.parametrize("code", snippets("sql"))
def test_an_sql_snippet_runs(code: str, tmp_path: Path) -> None:
    async def make() -> None:
        async with await Queue.open(f"sqlite:///{tmp_path}/q.db") as queue:
            await queue.submit(type="code")
            await queue.claim("a", start=True)

    asyncio.run(make())
    assert apsw.Connection(str(tmp_path / "q.db")).execute(code).fetchall()


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page in PAGES
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_the_readme_names_every_verb_of_the_queue() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\b[a-z_]+\b", readme))
    public = {name for name in dir(Queue) if not name.startswith("_") and callable(getattr(Queue, name))}
    apart = {name for name in public if name.endswith("_many") or name.startswith(("set_agent", "unset"))}
    quiet = {"open", "close", "now", "in_workspace", "as_caller", "claim_answer", "agent_heartbeat", "rerun_issue"}
    quiet |= {"get_many", "tag_counts", "runtimes", "reviews", "duties", "follow"}
    assert public - apart - quiet - told == set()


def test_exported_names_exist() -> None:
    assert sorted(shiftwork.__all__) == shiftwork.__all__
    assert all(hasattr(shiftwork, name) for name in shiftwork.__all__)
