"""The program as a process: pipes, terminals, interrupts and imports."""

import json
import os
import pty
import re
import shutil
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
    """Return the environment without variables that commands of other tests set in this process."""
    set_here = ("SHIFTWORK_STORE", "SHIFTWORK_LOG_FORMAT", "NO_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(set_here)}


def in_terminal(folder: Path, line: str, columns: int, **environment: str) -> str:
    """Return the output on a terminal of this width."""
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


@pytest.mark.parametrize(("command", "path"), [("./report.sh", ""), ("report.sh", ".:")], ids=["path", "PATH"])
@pytest.mark.parametrize("processes", [1, 2])
def test_relative_command_works_in_task_folders(tmp_path: Path, command: str, path: str, processes: int) -> None:
    (tmp_path / "report.sh").write_text("#!/bin/sh\necho it ran in ${PWD##*/}\n")
    (tmp_path / "report.sh").chmod(0o755)
    task = call(tmp_path, "submit report").stdout.split()[0]
    line = f"work --type report --until-idle --processes {processes} -- {command}"
    worked = call(tmp_path, line, PATH=path + os.environ["PATH"])
    assert worked.returncode == 0, worked.stderr
    assert json.loads(call(tmp_path, f"show {task} --json").stdout)["result"]["text"] == f"it ran in {task}"


def test_queue_is_created_used_and_read_by_commands(tmp_path: Path) -> None:
    dag = {"tasks": [{"key": "a", "type": "t"}, {"key": "b", "type": "t", "dependencies": ["a"]}]}
    assert call(tmp_path, "submit --file - --json", stdin=json.dumps(dag)).returncode == 0
    listed = json.loads(call(tmp_path, "list --json").stdout)
    assert [task["status"] for task in listed["tasks"]] == ["ready", "pending"]
    done = call(tmp_path, "cancel " + listed["tasks"][0]["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert call(tmp_path, "show task_00000000000000000000000001").returncode == 3
    assert call(tmp_path, "list", SHIFTWORK_STORE="sqlite:///other.db").returncode == 5
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".db") == ["shiftwork.db"]


def test_installed_program_equals_the_module(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("shiftwork")
    done = subprocess.run([script, "version", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(call(tmp_path, "version --json").stdout)


def test_help_imports_no_store_and_no_rich(tmp_path: Path) -> None:
    for line in ("--help", "dlq retry --help", "version"):
        code = "import sys; from shiftwork.cli import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code, *line.split()], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        loaded = set(done.stdout.splitlines()[-1].split())
        assert loaded.isdisjoint({"rich", "asyncpg", "apsw", "shiftwork.worker", "shiftwork.demo"})


def test_table_fits_the_terminal_width(tmp_path: Path) -> None:
    title = "A-title-that-is-quite-a-bit-longer-than-any-terminal-has-room-for"
    call(tmp_path, f"submit code --title {title} --tag x")
    for width in (80, 120):
        seen = in_terminal(tmp_path, "list", width)
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in seen.splitlines()]
        assert max(len(line) for line in lines) <= width
        assert "task_" in lines[1]


@pytest.mark.parametrize("line", ["list", "doctor"])
def test_no_color_variable_disables_colour(tmp_path: Path, line: str) -> None:
    call(tmp_path, "submit code")
    assert re.search(r"\x1b\[3[0-9]", in_terminal(tmp_path, line, 100))
    assert not re.search(r"\x1b\[3[0-9]", in_terminal(tmp_path, line, 100, NO_COLOR="1"))


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    tasks = json.dumps([{"type": "code", "title": "x" * 1000}] * 300)
    call(tmp_path, "submit --file -", stdin=tasks)
    program = f"{sys.executable} -m shiftwork list --json --limit 300 | head -n 1"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_unencodable_character_is_replaced_by_a_question_mark(tmp_path: Path) -> None:
    call(tmp_path, "submit code --title 日本")
    done = call(tmp_path, "list", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert "??" in done.stdout


def test_events_are_followed_until_interrupted(tmp_path: Path) -> None:
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


def test_examples_of_the_readme_work_in_one_folder(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "crew.py").write_text(program, encoding="utf-8")
    command, known = [sys.executable, "crew.py"], clean_environment()
    printed = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, check=False)
    assert printed.stdout == "['news on bees', 'papers on bees']\n", printed.stderr
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


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
@pytest.mark.parametrize("line", ["list", "list --json", "submit code", "--help"])
def test_unwritable_output_is_reported_in_one_line(tmp_path: Path, line: str, redirected: str) -> None:
    call(tmp_path, "submit code")
    output = in_shell(tmp_path, f"shiftwork {line} {redirected}")
    assert output.returncode == 1
    assert "the answer cannot be written: " in output.stderr
    assert output.stderr.count("\n") == 1
    if "--json" in line:
        assert json.loads(output.stderr)["code"] == "output_lost"


@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
def test_unwritable_error_keeps_its_exit_code(tmp_path: Path, redirected: str) -> None:
    assert in_shell(tmp_path, f"shiftwork list --no-such-option {redirected}").returncode == 2
    assert in_shell(tmp_path, f"shiftwork list {redirected}").returncode == 5


@pytest.mark.parametrize("line", ["submit code", "list", "list --json", "doctor"])
def test_store_name_with_invalid_utf8_is_refused(tmp_path: Path, line: str) -> None:
    output = in_shell(tmp_path, f"shiftwork {line} --store $'sqlite:///nul\\x01\\xff.db'")
    assert output.returncode == 2
    assert "is not UTF-8 text" in output.stderr
    assert output.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("submit t --payload -", "standard input is closed"),
        ("submit --file -", "standard input is closed"),
        ("artifacts put -", "standard input is closed"),
    ],
)
def test_closed_stdin_is_reported_in_one_line(tmp_path: Path, line: str, part: str) -> None:
    output = in_shell(tmp_path, f"shiftwork {line} <&-")
    assert (output.returncode, output.stdout) == (2, "")
    assert part in output.stderr
    assert output.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [r"--type t -- echo $'\xff'", r"--type $'\xff' -- true", r"--type t --agent $'\xff' -- true"],
    ids=["command", "type", "agent"],
)
def test_command_with_invalid_utf8_is_refused(tmp_path: Path, words: str) -> None:
    output = in_shell(tmp_path, f"shiftwork work --json --until-idle {words}")
    assert output.returncode == 2
    assert json.loads(output.stderr)["code"] == "bad_text"
    assert r"'\udcff' is not UTF-8 text" in json.loads(output.stderr)["what"]
    assert list(tmp_path.iterdir()) == []


GONE = "mkdir gone; cd gone; rmdir ../gone; "


@pytest.mark.parametrize("line", ["submit code", "list", "doctor", "snapshot", "work --type code --until-idle -- true"])
def test_absolute_queue_path_works_in_a_removed_folder(tmp_path: Path, line: str) -> None:
    call(tmp_path, "submit code")
    done = in_shell(tmp_path, f"{GONE} shiftwork --store sqlite:///{tmp_path}/shiftwork.db {line}")
    assert done.returncode == 0, done.stderr


def test_relative_queue_in_a_removed_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    output = in_shell(tmp_path, f"{GONE} shiftwork list --json")
    assert (output.returncode, output.stdout) == (5, "")
    error = json.loads(output.stderr)
    assert error["code"] == "store_unavailable"
    assert error["what"] == "the folder this runs in was removed"


def test_folder_name_with_invalid_utf8_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    made = call(folder, "submit code --json")
    assert made.returncode == 2
    assert json.loads(made.stderr)["code"] == "bad_text"
    assert list(folder.iterdir()) == []
    assert json.loads(call(folder, "list --json").stderr)["code"] == "store_unavailable"


def in_shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, with `shiftwork` for this program."""
    text = f'shiftwork() {{ "{sys.executable}" -m shiftwork "$@"; }}; {line}'
    found = shutil.which("bash")
    assert found is not None
    return subprocess.run(
        [found, "-c", text], cwd=folder, capture_output=True, text=True, check=False, env=clean_environment()
    )


INTERRUPTED_WHILE_IT_LOADS = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "shiftwork.cli.claim_commands":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from shiftwork.cli import main
main()
"""


def test_interrupt_during_import_leaves_no_traceback(tmp_path: Path) -> None:
    line = [sys.executable, "-c", INTERRUPTED_WHILE_IT_LOADS, "list"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=clean_environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


APP = """
import os, signal
from shiftwork import Worker

worker = Worker(concurrency=1)

@worker.handler("code")
async def code(context):
    return 1

@worker.handler("hard")
async def hard(context):
    raise ValueError("no")

@worker.handler("deadly")
async def deadly(context):
    if context.task.fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2
"""


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("x = (\n", "app cannot be imported: SyntaxError: '(' was never closed", 1),
        ("import json\n\njson.loads('{')\n", "app cannot be imported: JSONDecodeError: Expecting", 3),
        ("\nraise SystemExit(0)\n", "app cannot be imported: SystemExit: 0", 2),
        ("raise BaseException\n", "app cannot be imported: BaseException", 1),
        ("import helper\n", "app needs no_such_thing, which is not installed", 2),
        ("from shiftwork import Worker\nWorker(concurrency=0)\n", "InputError: a worker needs room", 2),
    ],
)
def test_failing_module_is_reported_with_its_line(tmp_path: Path, text: str, what: str, line: int) -> None:
    (tmp_path / "app.py").write_text(text)
    (tmp_path / "helper.py").write_text("\nimport no_such_thing\n")
    file = tmp_path / ("helper.py" if "helper" in text else "app.py")
    output = call(tmp_path, "work app:worker --until-idle")
    assert output.returncode == 2
    assert output.stderr.startswith("error: ")
    assert output.stderr.count("\n") == 1
    assert what in output.stderr
    assert f"(at {file}:{line})" in output.stderr
    as_json = json.loads(call(tmp_path, "work app:worker --until-idle --json").stderr)
    assert (as_json["code"], as_json["where"]) == ("invalid_input", f"{file}:{line}")


@pytest.mark.parametrize("target", ["nowhere", "nowhere.within", "app.within"])
def test_missing_module_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    output = call(tmp_path, f"work {target}:worker")
    assert output.returncode == 2
    assert f"there is no module '{target if target.startswith('app') else 'nowhere'}' (at target)" in output.stderr


def test_work_reports_its_summary_in_json(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    for kind in ("code", "code", "hard"):
        call(tmp_path, f"submit {kind}")
    call(tmp_path, "settings set max_attempts 1 --type hard")
    done = call(tmp_path, "work app:worker --until-idle --json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert (output["processes"], output["silent"], output["completed"], output["failed"]) == (1, 0, 2, 1)
    assert call(tmp_path, "work app:worker --until-idle").stdout == ""


@pytest.mark.parametrize("processes", [1, 2])
def test_handler_output_is_kept_out_of_the_json_document(tmp_path: Path, processes: int) -> None:
    loud = 'import sys\nprint("at import")\n' + APP.replace("return 1", 'print("inside"); os.system("echo started")')
    (tmp_path / "app.py").write_text(loud + '\nsys.__stdout__.write("unflushed")\n')
    call(tmp_path, "submit code")
    done = call(tmp_path, f"work app:worker --until-idle --json --processes {processes}")
    assert json.loads(done.stdout)["completed"] == 1
    for printed in ("at import", "inside", "started", "unflushed"):
        assert printed in done.stderr
    call(tmp_path, "submit code")
    assert "inside" in call(tmp_path, f"work app:worker --until-idle --processes {processes}").stdout


def test_fleet_reports_its_summary_in_json(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    for kind in ("code", "code", "code", "deadly"):
        call(tmp_path, f"submit {kind}")
    done = call(tmp_path, "work app:worker --until-idle --json --processes 2", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["silent"] == 1
    assert output["processes"] == 2
    tasks = json.loads(call(tmp_path, "list --json").stdout)["tasks"]
    assert {task["status"] for task in tasks} == {"completed"}
    assert 1 <= output["completed"] <= 4  # what the killed process had completed, no one knows
    assert [path for path in tmp_path.iterdir() if path.name.startswith("shiftwork-")] == []


def test_work_prints_what_it_does(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    call(tmp_path, "settings set max_attempts 1 --type hard")
    tasks = [json.loads(call(tmp_path, f"submit {kind} --json").stdout)["id"] for kind in ("code", "hard")]
    done = call(tmp_path, "work app:worker --until-idle")
    assert (done.returncode, done.stdout) == (0, "")
    assert "on sqlite:///shiftwork.db; types: code, deadly, hard; up to 1 task at once" in done.stderr
    assert f"{tasks[0]} (code): completed; took " in done.stderr
    assert f"{tasks[1]} (hard): failed, dead_lettered; took " in done.stderr
    assert re.search(r"\ncompleted  1\nfailed     1\ntime       \d+(\.\d)? m?s\n$", done.stderr), done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_quiet_work_prints_only_errors(tmp_path: Path, processes: int) -> None:
    (tmp_path / "app.py").write_text(APP)
    call(tmp_path, "submit code")
    done = call(tmp_path, f"work app:worker --until-idle --quiet --processes {processes}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    call(tmp_path, "submit hard")
    assert "ValueError: no" in call(tmp_path, "work app:worker --max-tasks 1 -q").stderr


def test_work_prints_json_lines_for_machines(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    task = json.loads(call(tmp_path, "submit code --json").stdout)["id"]
    done = call(tmp_path, "work app:worker --until-idle --json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (first,) = [line for line in lines if "concurrency" in line]
    assert (first["types"], first["concurrency"], first["store"]) == (
        ["code", "deadly", "hard"],
        1,
        "sqlite:///shiftwork.db",
    )
    (line,) = [line for line in lines if "outcome" in line]
    assert (line["task_id"], line["type"], line["outcome"], line["cost_usd"]) == (task, "code", "completed", 0.0)


def test_fleet_prints_one_summary(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    call(tmp_path, "submit code")
    done = call(tmp_path, "work app:worker --until-idle --processes 2")
    assert "\ncompleted  1\nfailed     0\nprocesses  2\ntime " in done.stderr


def test_work_ends_after_max_tasks(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    for _ in range(3):
        call(tmp_path, "submit code")
    done = call(tmp_path, "work app:worker --max-tasks 2 --json")
    assert json.loads(done.stdout)["completed"] == 2
    assert len(json.loads(call(tmp_path, "list --status ready --json").stdout)["tasks"]) == 1
    refused = call(tmp_path, "work app:worker --max-tasks 2 --processes 2")
    assert refused.returncode == 2
    assert "--max-tasks is for one process; leave out --processes" in refused.stderr
    assert call(tmp_path, "work app:worker --max-tasks 0").returncode == 2


def test_status_says_why_work_waits(tmp_path: Path) -> None:
    call(tmp_path, "submit code")
    text = call(tmp_path, "status").stdout
    assert "Why work waits (1 waiting, nothing runs)" in text
    assert "no registered agent can take it: it needs type code" in text
    found = json.loads(call(tmp_path, "status --json").stdout)
    assert [(cause["kind"], cause["tasks"]) for cause in found["blocked"]["causes"]] == [("no_agent", 1)]


def test_ids_are_not_broken_over_two_lines(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.replace('"no"', '"a long sentence about what went wrong " * 3'))
    task = json.loads(call(tmp_path, "submit hard --json").stdout)["id"]
    call(tmp_path, "work app:worker --max-tasks 1 -q")
    assert task in in_terminal(tmp_path, "status", 110)


def test_logs_are_followed_until_the_task_ends(tmp_path: Path) -> None:
    app = APP.replace("return 1", 'context.log("begun"); context.log("careful\\nnow", "warning"); return 1')
    (tmp_path / "app.py").write_text(app)
    task = json.loads(call(tmp_path, "submit code --json").stdout)["id"]
    line = [*PROGRAM, "logs", "-f", task]
    follower = subprocess.Popen(line, cwd=tmp_path, env=clean_environment(), stdout=-1, stderr=-1, text=True)
    call(tmp_path, "work app:worker --until-idle -q")
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, "the task is completed\n")
    first, begun, careful, now = out.splitlines()
    assert first.startswith("attempt 1 by ")
    assert (begun[9:], careful[9:], now.strip()) == ("begun", "warning: careful", "now")
    lines = [json.loads(each) for each in call(tmp_path, f"logs {task} --json").stdout.splitlines()]
    assert [(each["level"], each["text"]) for each in lines] == [("info", "begun"), ("warning", "careful\nnow")]
    absent = call(tmp_path, "logs task_01M7P64ZV4E07VX0K0EDGER6Y0")
    assert (absent.returncode, "there is no task" in absent.stderr) == (3, True)


@pytest.mark.parametrize(("mode", "word"), [("cancel", "cancelled"), ("delete", "deleted")])
def test_purge_reports_the_outcome_of_the_tasks(tmp_path: Path, mode: str, word: str) -> None:
    call(tmp_path, "submit code")
    call(tmp_path, f"settings set purge.mode {mode}")
    assert call(tmp_path, "purge --type code --yes").stdout == f"1 purged ({word}, as purge.mode says)\n"
