"""The program as a shell runs it: pipes, terminals, interrupts, and what it loads."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.common import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "shiftwork"]


def call(folder: Path, line: str, *, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *line.split()],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), **environment},
    )


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SHIFTWORK_STORE", "NO_COLOR"))}


def in_terminal(folder: Path, line: str, columns: int, **environment: str) -> str:
    """What a person sees in a terminal of this width."""
    ours, theirs = pty.openpty()
    known = {**clean_environment(), "TERM": "xterm", "COLUMNS": str(columns), **environment}
    process = subprocess.Popen([*PROGRAM, *line.split()], cwd=folder, stdout=theirs, stderr=theirs, env=known)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last one has closed it
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait() == 0, seen
    return seen.decode()


def test_a_queue_is_made_worked_with_and_looked_at(tmp_path: Path) -> None:
    dag = {"tasks": [{"key": "a", "type": "t"}, {"key": "b", "type": "t", "dependencies": ["a"]}]}
    assert call(tmp_path, "submit --file - --json", stdin=json.dumps(dag)).returncode == 0
    listed = json.loads(call(tmp_path, "list --json").stdout)
    assert [task["status"] for task in listed["tasks"]] == ["ready", "pending"]
    done = call(tmp_path, "cancel " + listed["tasks"][0]["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert call(tmp_path, "show task_00000000000000000000000001").returncode == 3
    assert call(tmp_path, "list", SHIFTWORK_STORE="sqlite:///other.db").returncode == 5
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["shiftwork.db"]


def test_the_installed_program_is_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("shiftwork")
    done = subprocess.run([script, "version", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(call(tmp_path, "version --json").stdout)


def test_help_loads_no_store_and_no_table_maker(tmp_path: Path) -> None:
    for line in ("--help", "dlq retry --help", "version"):
        code = "import sys; from shiftwork.cli import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code, *line.split()], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        loaded = set(done.stdout.splitlines()[-1].split())
        assert loaded.isdisjoint({"rich", "asyncpg", "apsw", "shiftwork.worker", "shiftwork.demo"})


def test_a_table_fits_the_terminal_it_is_shown_in(tmp_path: Path) -> None:
    title = "A-title-that-is-quite-a-bit-longer-than-any-terminal-has-room-for"
    call(tmp_path, f"submit code --title {title} --tag x")
    for width in (80, 120):
        seen = in_terminal(tmp_path, "list", width)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in seen.splitlines()]
        assert max(len(line) for line in lines) <= width
        assert "task_" in lines[1]


@pytest.mark.parametrize("line", ["list", "doctor"])
def test_no_colour_where_none_is_wanted(tmp_path: Path, line: str) -> None:
    call(tmp_path, "submit code")
    assert re.search(r"\x1b\[3[0-9]", in_terminal(tmp_path, line, 100))
    assert not re.search(r"\x1b\[3[0-9]", in_terminal(tmp_path, line, 100, NO_COLOR="1"))


def test_a_pipe_that_closes_early_is_no_error(tmp_path: Path) -> None:
    tasks = json.dumps([{"type": "code", "title": "x" * 1000}] * 300)
    call(tmp_path, "submit --file -", stdin=tasks)
    program = f"{sys.executable} -m shiftwork list --json --limit 300 | head -n 1"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_a_terminal_that_lacks_a_letter_gets_a_question_mark(tmp_path: Path) -> None:
    call(tmp_path, "submit code --title 日本")
    done = call(tmp_path, "list", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert "??" in done.stdout


def test_events_are_followed_until_the_keyboard_says_stop(tmp_path: Path) -> None:
    call(tmp_path, "submit code")
    with subprocess.Popen(
        [*PROGRAM, "events", "--follow", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["verb"] == "submitted"
        call(tmp_path, "pause --reason upgrade")
        assert json.loads(process.stdout.readline())["verb"] == "queue_paused"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert json.loads(err)["code"] == "interrupted"


def test_the_shell_lines_of_the_readme_work(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert snippets
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    port = str(free_port())
    for snippet in snippets:
        done = subprocess.run(
            ["bash", "-meuo", "pipefail", "-c", snippet.replace("8080", port)],
            cwd=tmp_path,
            env={**clean_environment(), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
