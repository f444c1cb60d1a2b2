"""Steps and effects of agents that are shell scripts."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.cli.test_claim_commands import run_script
from tests.cli.test_processes import call

SCRIPT = """
set -euo pipefail
export SHIFTWORK_AGENT=script
work() {
    token=$(shiftwork claim --start --print-token)
    shiftwork step "$token" fetch -- sh -c 'echo run >> runs; echo "line 1"; echo "line 2"'
    shiftwork step "$token" count --cost 0.25 -- sh -c 'echo run >> runs; printf 7'
}
work
shiftwork release "$token" > released
work
shiftwork step "$token" sum --data '[1, 2]'
"""


def test_restarted_script_does_not_repeat_its_steps(tmp_path: Path) -> None:
    task_id = json.loads(call(tmp_path, "submit code --json").stdout)["id"]
    assert run_script(tmp_path, SCRIPT) == "line 1\nline 2\n7line 1\nline 2\n7sum done\n"
    assert (tmp_path / "runs").read_text().splitlines() == ["run", "run"]
    steps = json.loads(call(tmp_path, f"steps {task_id} --json").stdout)
    assert [(step["name"], step["result"], step["cost_usd"]) for step in steps] == [
        ("fetch", "line 1\nline 2\n", 0),
        ("count", "7", 0.25),
        ("sum", [1, 2], 0),
    ]


def run(terminal: Terminal, token: str, program: str, *options: str) -> tuple[int, str, str]:
    done = terminal.run("step", token, "s", *options, "--", sys.executable, "-c", program)
    return done.code, done.out, done.err


def test_failing_step_command_leaves_no_result(each_terminal: Terminal) -> None:
    token = each_terminal.running()
    assert run(each_terminal, token, "print('half'); raise SystemExit(7)") == (7, "half\n", "")
    (step,) = each_terminal.json("steps", token.partition(".")[0])
    assert (step["status"], step["result"]) == ("in_flight", None)
    assert run(each_terminal, token, "print('whole')") == (0, "whole\n", "")
    assert run(each_terminal, token, "raise SystemExit(7)") == (0, "whole\n", "")
    answered = json.loads(run(each_terminal, token, "raise SystemExit(7)", "--json")[1])
    assert (answered["status"], answered["result"]) == ("done", "whole\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["plan"], "choose what to do with the step"),
        (["plan", "--begin", "--data", "1"], "choose what to do with the step"),
        (["plan", "--data", "nonsense"], "not JSON"),
        (["plan", "--", "no-such-program"], "no-such-program cannot be run"),
        (["plan", "--", sys.executable, "-c", r"import os; os.write(1, b'\xff')"], "is not UTF-8"),
    ],
)
def test_invalid_step_command_is_refused(terminal: Terminal, line: list[str], said: str) -> None:
    token = terminal.running()
    done = terminal.run("step", token, *line)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert [step["status"] for step in terminal.json("steps", token.partition(".")[0])] in ([], ["in_flight"])


def test_step_command_is_ended_when_its_claim_is_lost(terminal: Terminal) -> None:
    terminal.ready()
    terminal.text("settings", "set", "heartbeat_interval_sec", "0.05")
    token = terminal.running()
    cancel = [sys.executable, "-m", "shiftwork", "--store", terminal.url, "cancel", token.partition(".")[0]]
    code, _, stated = run(terminal, token, f"import subprocess, time; subprocess.run({cancel}); time.sleep(3600)")
    assert (code, "the work is no longer needed" in stated) == (4, True)


def test_unknown_effect_exits_with_its_own_code(each_terminal: Terminal) -> None:
    token = each_terminal.acting()
    again = each_terminal.run("effects", "begin", token, "--key", token)
    assert (again.code, again.out) == (4, f"unknown {token}\n")
    assert each_terminal.text("effects", "finish", token, token, "--data", '"receipt"') == f"done {token}\n"
    assert each_terminal.json("effects", "begin", token, "--key", token)["result"] == "receipt"
    assert each_terminal.run("effects", "begin", token).code == 2


def test_resolving_an_effect_makes_the_task_ready(each_terminal: Terminal) -> None:
    key = each_terminal.doubted()
    (listed,) = each_terminal.json("effects")
    assert (listed["key"], listed["status"]) == (key, "unknown")
    resolved = each_terminal.json("effects", "resolve", key, "--happened", "--data", '{"at": 5}')
    assert (resolved["status"], resolved["result"], resolved["resolved_by"]) == ("done", {"at": 5}, "human:ada")
    assert each_terminal.json("show", key.partition(".")[0])["status"] == "ready"
    assert each_terminal.run("effects", "resolve", key, "--happened").code == 4
    assert each_terminal.run("effects", "resolve", "nothing", "--happened").code == 3
