"""How a command is called for a task: arguments, environment, input, and refusals."""

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shiftwork.model.errors import InputError
from shiftwork.model.task import Claim, Task
from shiftwork.worker import command_line
from shiftwork.worker.command_line import Call, Program
from shiftwork.worker.context import Fail
from shiftwork.worker.exit_status import Facts, interpret, name_of, reason_of, session_is_gone
from shiftwork.worker.output import Final

NOBODY = Claim(None, None, None, None, 30, None, None, None)


def made(*command: str, **fields: Any) -> Program:
    known: dict[str, Any] = {"types": ("code",), "store": "sqlite:////q.db", "work_dir": "/base"}
    return Program(command=command, **{**known, **fields})


def call(prompt: str = "do it", session_id: str | None = None, **fields: Any) -> Call:
    known: dict[str, Any] = {"priority": 50, "dag_id": "dag_1", "root_task_id": "task_1", "created_at": 0}
    known |= {"updated_at": 0, "version": 1, "fence": 2, "round": 1, "attempts": 1, "max_attempts": 3, "retry": {}}
    known |= {"claim": NOBODY, "spec": {"prompt": prompt}, **fields}
    task = Task(id="task_1", workspace_id="default", type="code", status="running", **known)
    return Call(
        task, "task_1.2", Path("/base/task_1"), Path("/base/task_1.json"), session_id, Path("/base/task_1.inbox")
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["agent", "{prompt}"], ["agent", "do it"]),
        (["agent", "--in={work_dir}", "{type}{attempt}"], ["agent", "--in=/base/task_1", "code2"]),
        (["agent", "{task_id}", "{task_file}"], ["agent", "task_1", "/base/task_1.json"]),
        (["agent", '{"json": "{prompt}"}', "{other}", "{}"], ["agent", '{"json": "do it"}', "{other}", "{}"]),
        (["agent", "{resume}", "-"], ["agent", "-"]),
    ],
)
def test_placeholders_are_filled_and_other_braces_kept(command: list[str], expected: list[str]) -> None:
    assert command_line.arguments(made(*command), call()) == expected


@pytest.mark.parametrize(
    ("command", "resume", "expected"),
    [
        (["agent", "-p"], ["--resume", "{session_id}"], ["agent", "-p", "--resume", "S"]),
        (["agent", "run", "{resume}", "-"], ["resume", "{session_id}"], ["agent", "run", "resume", "S", "-"]),
        (["agent"], [], ["agent"]),
    ],
)
def test_resume_arguments_are_inserted_at_their_place(
    command: list[str], resume: list[str], expected: list[str]
) -> None:
    known = made(*command, resume_args=tuple(resume))
    assert command_line.arguments(known, call(session_id="S")) == expected
    assert "S" not in command_line.arguments(known, call())


@pytest.mark.parametrize("text", ["--dangerous", "-x"])
def test_task_text_cannot_add_command_options(text: str) -> None:
    for known, asked in (
        (made("agent", "{prompt}"), call(text)),
        (made("agent", resume_args=("--resume", "{session_id}")), call(session_id=text)),
    ):
        with pytest.raises(Fail, match="would read as an option") as refused:
            command_line.arguments(known, asked)
        assert refused.value.reason == "invalid_input"
    assert command_line.arguments(made("agent", "--", "{prompt}"), call(text))[-1] == text
    assert command_line.arguments(made("agent", "--prompt={prompt}"), call(text))[-1] == f"--prompt={text}"


def test_prompt_too_long_for_a_command_line_is_sent_by_stdin() -> None:
    long = call("x" * 200_000)
    with pytest.raises(Fail, match="too long"):
        command_line.arguments(made("agent", "{prompt}"), long)
    assert "SHIFTWORK_PROMPT" not in command_line.environment(made("agent"), long, "ada")
    assert len(command_line.feed(made("agent", stdin="prompt"), long)) == 200_000


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"spec": {"prompt": "a"}, "payload": {"prompt": "b"}, "title": "c"}, "a"),
        ({"spec": None, "payload": {"prompt": "b"}, "title": "c"}, "b"),
        ({"spec": {}, "payload": {"prompt": 7}, "title": "c"}, "c"),
        ({"spec": None}, ""),
    ],
)
def test_prompt_is_taken_from_the_most_specific_field(fields: dict[str, Any], expected: str) -> None:
    assert command_line.prompt_of(call(**fields).task) == expected


def test_environment_contains_the_connection_to_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFTWORK_TOKEN", "secret")
    found = command_line.environment(made("agent"), call(session_id="S"), "ada")
    assert found["SHIFTWORK_TOKEN"] == "secret"
    assert {name: value for name, value in found.items() if name.startswith("SHIFTWORK_")}.items() >= {
        "SHIFTWORK_STORE": "sqlite:////q.db",
        "SHIFTWORK_WORKSPACE": "default",
        "SHIFTWORK_AGENT": "ada",
        "SHIFTWORK_CLAIM": "task_1.2",
        "SHIFTWORK_TASK_ID": "task_1",
        "SHIFTWORK_SESSION_ID": "S",
        "SHIFTWORK_ATTEMPT": "2",
    }.items()


def test_stdin_contains_the_task_or_the_prompt() -> None:
    assert msgspec.json.decode(command_line.feed(made("agent"), call()))["id"] == "task_1"
    assert command_line.feed(made("agent", stdin="prompt"), call()) == b"do it"
    assert command_line.feed(made("agent", stdin="none"), call()) == b""


@pytest.mark.parametrize(
    ("command", "fields", "complaint"),
    [
        ([], {}, "there is no command"),
        (["sh"], {"types": ()}, "needs the types"),
        (["no-such-program"], {}, "'no-such-program' is not found"),
        (["/no/such/program"], {}, "is not found"),
        (["/etc/passwd"], {}, "is not executable"),
        (["/"], {}, "is not executable"),
        (["sh", "a\0b"], {}, "NUL"),
        (["sh", "-c", "echo {prompt}"], {}, "a placeholder inside a script"),
        (["/bin/bash", "-ec", "echo '{session_id}'"], {}, "a placeholder inside a script"),
        (["env", "sh", "-c", "echo {prompt}"], {}, "a placeholder inside a script"),
    ],
)
def test_unusable_program_is_refused(command: list[str], fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        command_line.check(made(*command, **fields))


CODE = [
    "sh -c 'echo {prompt}'",
    "sh -lc 'echo {prompt}'",
    "bash -euc 'echo {prompt}'",
    "bash -ce 'echo {prompt}'",
    "bash -o pipefail -c 'echo {prompt}'",
    "sh -c 'echo $0' {prompt}",
    "fish --command='echo {prompt}'",
    "env A=1 sh -c 'echo {prompt}'",
    "env -S 'sh -c echo\\ {prompt}'",
    "env '-Ssh run.sh {prompt}'",
    "nice -n 5 bash -c 'echo {prompt}'",
    "timeout 9 sh -c 'echo {prompt}'",
    "sudo -u agent /bin/zsh -c 'echo {prompt}'",
    "/bin/busybox sh -c 'echo {prompt}'",
    "/bin/busybox ash -c 'echo {prompt}'",
    "xargs -I X sh -c 'echo {prompt} X'",
    "su agent -c 'echo {prompt}'",
    "script -qc 'echo {prompt}' /dev/null",
    "ssh host agent {prompt}",
    "watch echo {prompt}",
    "python3.12 -c 'print({prompt})'",
    "python -Ic 'print({prompt})'",
    "python -W ignore -c 'print({prompt})'",
    "perl -ne '{prompt}'",
    "node --eval='{prompt}'",
    "awk '{prompt}' file",
]
DATA = [
    "claude -p {prompt}",
    "codex exec --json {prompt}",
    "sh run.sh {prompt}",
    "bash run.sh -c {prompt}",
    "bash -e run.sh {prompt}",
    "env A=1 claude -p {prompt}",
    "timeout 9 claude -p {prompt}",
    "node cli.js -p {prompt}",
    "python -m agent -c {prompt}",
    "python -c 'import sys; print(sys.argv)' {prompt}",
    "sh -c 'echo $SHIFTWORK_PROMPT'",
]


@pytest.mark.parametrize("line", CODE)
def test_placeholder_read_as_code_is_detected(line: str) -> None:
    assert command_line.reads_as_code(shlex.split(line), lambda word: "{prompt}" in word)


@pytest.mark.parametrize("line", DATA)
def test_placeholder_used_as_argument_is_accepted(line: str) -> None:
    assert not command_line.reads_as_code(shlex.split(line), lambda word: "{prompt}" in word)


@pytest.mark.parametrize("command", [["sh", "{resume}"], ["sh"]])
def test_resume_arguments_are_checked_like_the_command(command: list[str]) -> None:
    with pytest.raises(InputError, match="a placeholder inside a script"):
        command_line.check(made(*command, resume_args=("-c", "agent --resume {session_id}")))


def test_program_survives_a_round_trip_to_other_processes() -> None:
    known = made("/bin/sh", "-c", "echo ü", models=("m",), clean=True, kill_after_sec=0.5)
    assert command_line.from_target(command_line.check(known).target()) == known


def test_command_is_stored_with_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "report"
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin")
    for name in ("bin/report", "./bin/report", "report", str(script)):
        assert command_line.check(made(name, "-v")).command == (str(script), "-v")


@pytest.mark.parametrize(
    ("code", "reason", "name"),
    [
        (1, "agent_error", "exit code 1"),
        (75, "rate_limit", "exit code 75"),
        (-9, "crash", "killed by SIGKILL"),
        (-99, "crash", "killed by signal 99"),
        (137, "crash", "exit code 137"),
        (255, "agent_error", "exit code 255"),
    ],
)
def test_every_exit_code_has_a_reason(code: int, reason: str, name: str) -> None:
    assert (reason_of(code), name_of(code)) == (reason, name)


def test_reported_failure_takes_precedence_over_exit_code() -> None:
    final = Final("the conversation is too long", failed=True, reason="context_exceeded")
    with pytest.raises(Fail) as failed:
        interpret(1, final, "", cut=False, facts=Facts(), now=0)
    assert (failed.value.reason, failed.value.error) == (
        "context_exceeded",
        "exit code 1\nthe conversation is too long",
    )


def test_success_with_failing_exit_code_is_a_failure() -> None:
    with pytest.raises(Fail) as failed:
        interpret(75, Final("done", reason="crash"), "slow down", cut=False, facts=Facts(), now=0)
    assert failed.value.reason == "rate_limit"


@pytest.mark.parametrize(
    ("code", "stderr", "gone"),
    [
        (1, "No conversation found with session ID: S", True),
        (1, "Error: thread/resume failed: no rollout found for thread id S (code -32600)", True),
        (42, "Error resuming session: No previous sessions found for this project.", True),
        (1, "\x1b[91m\x1b[1mError: \x1b[0mSession not found", True),
        (66, "No conversation found with session ID: S", False),  # it has said itself what is to follow
        (0, "Session not found", False),
        (1, "the tool broke", False),
    ],
)
def test_agent_that_has_no_session_to_resume_is_recognised(code: int, stderr: str, *, gone: bool) -> None:
    assert session_is_gone(code, Final(""), stderr) is gone
