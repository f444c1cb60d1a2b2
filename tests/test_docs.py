"""The documentation is correct: generated pages match the code, every snippet runs, every public name is described."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import apsw
import pytest

import shiftwork
from shiftwork import Queue
from tests.client.serving import served
from tests.crashes.fork_server import ForkServer
from tests.services.common import free_port
from tools import docs

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SERVER = "http://127.0.0.1:8080"
DATABASE = "postgresql://app@127.0.0.1/shop"
RUN_ELSEWHERE = {
    "README.md": "tests/cli/test_processes.py",
    "docs/documents/aegis.md": "tests/acceptance/test_aegis_end_to_end.py",
    "docs/documents/redis.md": "tests/bridges/redis/test_pages.py",
    "docs/howto/loki-folders.md": "tests/bridges/loki/test_page.py",
    "docs/howto/many-databases.md": "tests/databases/test_page.py",
    "docs/howto/redis.md": "tests/bridges/redis/test_pages.py",
    "docs/howto/serve.md": "tests/server/test_pages.py",
    "docs/tutorial.md": "tests/test_tutorial.py",
}
"""Pages whose commands need more than an empty folder, and the tests that run them."""
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""Its programs import each other: tests/test_tutorial.py runs all of them in one folder."""
_SNIPPET = re.compile(r"```(python|sql|sh)\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)\)")
_FILE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|sql|toml))`")


def snippets(language: str, holding: str = "") -> list[pytest.param]:  # type: ignore[valid-type]  # a factory, not a type
    return [
        pytest.param(code, id=f"{page.relative_to(ROOT)}:{place}")
        for page in PAGES
        if page != TUTORIAL
        for place, (kind, code) in enumerate(_SNIPPET.findall(page.read_text(encoding="utf-8")))
        if kind == language and holding in code
    ]


def scripts() -> list[pytest.param]:  # type: ignore[valid-type]  # a factory, not a type
    """The commands of each page that need no server, one after the other, as they are read."""
    found = {page: _SNIPPET.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    return [
        pytest.param("\n".join(code), id=name)
        for page, parts in found.items()
        if (name := str(page.relative_to(ROOT))) not in RUN_ELSEWHERE
        and (code := [text for kind, text in parts if kind == "sh" and SERVER not in text])
    ]


def test_generated_pages_are_up_to_date() -> None:
    assert docs.outdated() == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server that replaces http://127.0.0.1:8080 of the pages."""
    with served(f"sqlite:///{tmp_path_factory.mktemp('server')}/queue.db") as running:
        yield running.url


@pytest.fixture(scope="module")
def python() -> Iterator[ForkServer]:
    with ForkServer("tests.snippets") as started:
        yield started


@pytest.mark.parametrize("code", snippets("python"))
def test_python_snippet_runs_in_an_empty_folder(
    code: str, server: str, python: ForkServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    program = code.replace(SERVER, server)
    if DATABASE in program:
        program = program.replace(DATABASE, request.getfixturevalue("postgres_dsn"))
    (folder := tmp_path / "empty").mkdir()
    printed = tmp_path / "printed"
    assert python.run("run", program, str(folder), str(printed)) == 0, printed.read_text()
    expected = re.search(r"print\(.*#\s*(.+)$", code, re.MULTILINE)
    assert expected is None or expected[1].strip() in printed.read_text()


@pytest.mark.parametrize("code", snippets("sh", SERVER))
def test_shell_snippet_runs_against_a_server(code: str, server: str, tmp_path: Path) -> None:
    known = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = ["sh", "-e", "-c", code.replace(SERVER, server)]
    done = subprocess.run(line, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", scripts())
def test_shell_snippets_of_a_page_run_in_sequence(script: str, tmp_path: Path) -> None:
    known = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    script = f"trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n{script}"  # what a page leaves running
    line = ["bash", "-em", "-c", script.replace("8080", str(free_port()))]
    done = subprocess.run(line, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_run_by_other_tests_are_named_there() -> None:
    wrong = [page for page, test in RUN_ELSEWHERE.items() if Path(page).name not in (ROOT / test).read_text("utf-8")]
    assert wrong == []


@pytest.mark.parametrize("code", snippets("sql"))
def test_sql_snippet_returns_rows(code: str, tmp_path: Path) -> None:
    async def make() -> None:
        async with Queue.open(f"sqlite:///{tmp_path}/q.db") as queue:
            await queue.submit(type="code")
            await queue.claim("a", start=True)

    asyncio.run(make())
    assert apsw.Connection(str(tmp_path / "q.db")).execute(code).fetchall()


def test_links_between_pages_are_valid() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page in PAGES
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []


def test_files_named_in_pages_exist() -> None:
    places = ROOT, ROOT / "src" / "shiftwork", ROOT / "src" / "shiftwork" / "store"
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for name in _FILE.findall(page.read_text(encoding="utf-8"))
        if not any((place / name).exists() for place in places)
    ]
    assert missing == []


@pytest.mark.requirement("F-213")
def test_trigger_page_says_when_to_use_schedules_or_events() -> None:
    page = (ROOT / "docs" / "howto" / "triggers.md").read_text(encoding="utf-8")
    assert "Use schedules for predictable work: nightly audits" in page
    assert "Use hooks and events to react: a pull request was opened" in " ".join(page.split())


def test_readme_names_every_method_of_the_queue() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = set(re.findall(r"\b[a-z_]+\b", readme))
    public = {name for name in dir(Queue) if not name.startswith("_") and callable(getattr(Queue, name))}
    quiet = {"open", "close", "now", "in_workspace", "as_caller", "for_caller", "databases", "find_token"}
    assert public - quiet - found == set()


def test_every_public_class_is_on_the_python_page() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    exported = {name: getattr(shiftwork, name) for name in shiftwork.__all__}
    described = [name for name, value in exported.items() if isinstance(value, type | FunctionType)]
    assert [name for name in described if f"\n### {name}\n" not in page] == []


def test_exported_names_exist_and_are_sorted() -> None:
    assert sorted(shiftwork.__all__) == shiftwork.__all__
    assert all(hasattr(shiftwork, name) for name in shiftwork.__all__)
