"""`work` with a command: what is refused before any claim, and that the worker of a module runs as before."""

import json
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["work"], "name a worker (module:worker), or a command after --"),
        (["work", "--"], "there is no command"),
        (["work", "--", "true"], "a command needs the types of its tasks"),
        (["work", "--type", "code", "--", "no-such-program"], "the command 'no-such-program' is not found"),
        (["work", "app:worker", "--type", "code", "--", "true"], "name a worker or a command, not both"),
        (["work", "./app:worker"], "'./app' is a path, not the name of a module"),
        (["work", ".app:worker"], "'.app' is a path, not the name of a module"),
        (["work", "app:worker", "--type", "code"], "--type applies to a command after --"),
        (["work", "app:worker", "--kill-after", "0"], "--kill-after applies to a command after --"),
        (["work", "--type", "c", "--stop-grace", "nan", "--", "true"], "nan is not a finite number"),
        (["work", "--type", "c", "--kill-after", "inf", "--", "true"], "inf is not a finite number"),
        (["work", "--type", "c", "--output", "xml", "--", "true"], "'xml' is not one of"),
        (["work", "--type", "c", "--resume-args", "'", "--", "true"], "cannot be split into words"),
        (["work", "--type", "c", "--", "sh", "-c", "echo {prompt}"], "a placeholder inside a script"),
        (["work", "--type", "c", "--work-dir", "/dev/null/x", "--", "true"], "cannot work in /dev/null/x"),
    ],
)
def test_invalid_work_command_is_refused_with_a_reason(terminal: Terminal, line: list[str], complaint: str) -> None:
    done = terminal.run(*line)
    assert done.code == 2
    assert complaint in done.err
    as_json = terminal.run(line[0], "--json", *line[1:])
    assert complaint in json.loads(as_json.err)["what"]


def test_options_of_the_run_command_are_passed_unchanged(terminal: Terminal, tmp_path: Path) -> None:
    task = terminal.text("submit", "code").split()[0]
    run = [
        "work",
        "--type",
        "code",
        "--until-idle",
        "--work-dir",
        str(tmp_path / "w"),
        "--",
        "echo",
        "--json",
        "--type",
    ]
    assert terminal.run(*run).code == 0
    assert terminal.json("show", task)["result"]["text"] == "--json --type"


def test_task_folders_are_next_to_the_queue_by_default(terminal: Terminal) -> None:
    task = terminal.text("submit", "code").split()[0]
    assert terminal.run("work", "--type", "code", "--until-idle", "--", "pwd").code == 0
    assert terminal.json("show", task)["result"]["text"] == f"{terminal.url.removeprefix('sqlite:///')}.work/{task}"


def test_type_named_twice_is_used_once(terminal: Terminal) -> None:
    task = terminal.text("submit", "code").split()[0]
    done = terminal.run("work", "--type", "code", "--type", "code", "--until-idle", "--", "echo", "done")
    assert done.code == 0, done.err
    assert terminal.json("show", task)["result"]["text"] == "done"
