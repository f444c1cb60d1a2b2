"""Every mistake is reported in one line with a distinct exit code."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from shiftwork.cli.exit_codes import MEANING, ExitCode, code_of
from shiftwork.model.errors import all_errors
from tests.cli.terminal import Terminal

TASK = '{"type": "code"}'
NOBODY = "task_00000000000000000000000001"

# a command line; the exit code; the code of the JSON; a part of the message
MISTAKES = [
    ("submit", 2, "usage", "TYPE or --file is needed"),
    ("submit code --payload {", 2, "usage", "not JSON: Expecting property name"),
    ("submit code --payload [1]", 2, "usage", "expected a JSON object, got a JSON list"),
    ("submit code --priority high", 2, "usage", "'high' is not a valid float"),
    ("submit code --priority nan", 2, "usage", "nan is not a finite number"),
    ("watch --every nan", 2, "usage", "nan is not a finite number"),
    ("agents budget ada inf", 2, "usage", "inf is not a finite number"),
    ("submit code --priority 101", 2, "invalid_input", "(at task.priority)"),
    ("submit code --deadline tomorrow", 2, "usage", "neither a time like"),
    ("submit code --deadline 99999999999999w", 2, "usage", "outside the calendar"),
    (f"submit code --deadline {'9' * 400}w", 2, "usage", "outside the calendar"),
    ("submit code --deadline 0001-01-01T00:00+14:00", 2, "usage", "outside the calendar"),
    ("submit code --delay soon", 2, "usage", "is not a duration like 90s, 15m, 2h or 3d"),
    ("submit code --at 2h --delay 2h", 2, "invalid_input", "Give one of them."),
    ("submit code --expires 2001-01-01", 2, "invalid_input", "(at task.expires_at). Choose a later time."),
    ("submit code --delay 2h --expires 1h", 2, "invalid_input", "Choose an expiry after `run_at`."),
    ("submit code --file tasks.json", 2, "usage", "tasks.json cannot be read: No such file"),
    ("submit --file /", 2, "usage", "cannot be read: Is a directory"),
    ("submit code --depends {ready} --file -", 2, "usage", "only in the file"),
    ("submit code --id {ready}", 4, "id_in_use", ""),
    (f"show {NOBODY}", 3, "not_found", f"there is no task '{NOBODY}'. Check the id and the workspace."),
    ("show my-own-name", 3, "not_found", "there is no task 'my-own-name'"),
    (f"explain {NOBODY}", 3, "not_found", "there is no task"),
    (f"rerun {NOBODY}", 3, "not_found", "there is no task"),
    ("cancel", 2, "usage", "name either tasks or conditions"),
    ("cancel {ready} --type code", 2, "usage", "name either tasks or conditions"),
    ("retry", 2, "usage", "name either tasks or conditions"),
    ("priority 5", 2, "usage", "name either tasks or conditions"),
    ("priority high --type code", 2, "usage", "'high' is not a valid float"),
    ("priority 101 --type code --yes", 2, "invalid_input", "(at priority)"),
    ("cancel --status completed --yes", 2, "invalid_input", "not possible for tasks that are completed"),
    ("cancel --search !! --yes", 2, "invalid_input", "a search needs a letter or a digit"),
    ("cancel --since soon", 2, "usage", "neither a time like"),
    ("search", 2, "usage", "Missing argument"),
    ("search ??", 2, "invalid_input", "a search needs a letter or a digit"),
    ("cancel --dag nothing", 3, "not_found", "there is no DAG"),
    ("rerun {ready}", 4, "wrong_state", "it has not ended yet"),
    ("update {done} --priority 5", 4, "wrong_state", "only an unclaimed task can be changed"),
    ("update {ready} --priority 5 --version 99", 4, "version_conflict", "is at version 1, not 99"),
    ("update {ready}", 2, "usage", "there is nothing to change"),
    ("update {ready} --depends {ready} --clear nonsense", 2, "invalid_input", "'nonsense' cannot be emptied"),
    ("list --status sleeping", 2, "invalid_input", "there is no status 'sleeping' (at status). One of pending"),
    ("list --limit 0", 2, "invalid_input", "Expected `int` >= 1 (at limit)"),
    ("list --dag nothing", 3, "not_found", "there is no DAG"),
    ("list --statsu ready", 2, "usage", "No such option '--statsu' (at shiftwork list). Did you mean `--status`?"),
    ("--versoin", 2, "usage", "No such option '--versoin' (at shiftwork). Did you mean `--version`?"),
    ("--since", 2, "usage", "No such option '--since' (at shiftwork). See"),
    ("tasks", 2, "usage", "No such command 'tasks' (at shiftwork). Did you mean `list`?"),
    ("dlq tasks", 2, "usage", "No such command 'tasks' (at shiftwork dlq). See"),
    ("lisst", 2, "usage", "No such command 'lisst' (at shiftwork). Did you mean `list`?"),
    ("start {ready}", 4, "wrong_state", "it is not claimed"),
    ("start nothing.1", 3, "not_found", "there is no task"),
    ("complete {claimed}", 4, "wrong_state", "is claimed, not running"),
    ("complete {running} --data {", 2, "usage", "not JSON"),
    ("complete {running} --data @none.json", 2, "usage", "none.json cannot be read: No such file"),
    ("fail {running}", 2, "usage", "Missing option '--reason'"),
    ("message {running} hello --kind song", 2, "invalid_input", "'song' (at kind). Use one of tool_call, text, error"),
    ("claim --wait 100", 2, "invalid_input", "Expected `float` <= 25.0 (at wait)"),
    ("claim --count 0", 2, "invalid_input", "Expected `int` >= 1 (at count)"),
    ("alerts acknowledge 99", 3, "not_found", "there is no alert 99"),
    ("alerts acknowledge first", 2, "usage", "'first' is not a valid integer"),
    ("alerts list --kind fire", 2, "invalid_input", "there is no kind 'fire' (at kind). Use one of dead_lettered"),
    ("failures --by colour", 2, "usage", "'colour' is not one of 'type', 'agent', 'model', 'reason', 'signature'"),
    ("dags list --status open", 2, "usage", "'open' is not one of 'pending', 'running', 'completed', 'failed'"),
    ("dags update {dag}", 2, "usage", "there is nothing to change"),
    ("dags update {dag} --ceiling 5 --no-ceiling", 2, "usage", "either --ceiling or --no-ceiling"),
    ("dags update {dag} --ceiling -5", 2, "invalid_input", "(at changes.budget_ceiling_usd)"),
    ("dags show nothing", 3, "not_found", "there is no DAG"),
    ("dlq show {ready}", 3, "not_found", "is ready, not a dead letter"),
    ("dlq modify {dead}", 2, "usage", "Missing option '--change'"),
    ("dlq redrive {signature} --decision forget", 2, "invalid_input", "'forget' is not one of retry"),
    ("agents drain nobody", 3, "not_found", "there is no agent 'nobody'"),
    ("agents budget nobody", 2, "usage", "give either USD or --no-limit"),
    ("purge --yes", 2, "usage", "a purge needs at least one condition"),
    ("purge --older-than 1h --until 1h --yes", 2, "usage", "either --older-than or --until"),
    ("purge --status sleeping --yes", 2, "invalid_input", "there is no status 'sleeping'"),
    ("purge --older-than soon --yes", 2, "usage", "'soon' is not a duration"),
    ("events --after 1 --tail 1", 2, "usage", "either --after or --tail"),
    ("settings set max_atempts 3", 2, "unknown_setting", "nearest: max_attempts"),
    ("settings show max_atempts", 2, "unknown_setting", "nearest: max_attempts"),
    ("settings unset max_atempts", 2, "unknown_setting", "nearest: max_attempts"),
    ("settings set max_attempts many", 2, "invalid_input", "(at max_attempts)"),
    ("settings set retry {", 2, "usage", "not JSON"),
    ("settings profile lokki", 2, "invalid_input", "There is no profile 'lokki' (at profile). Choose one of standard"),
    ("tokens create ci", 2, "usage", "Missing option '--scope'. Choose from: read, submit"),
    (
        "tokens create ci --scope root",
        2,
        "usage",
        "'root' is not one of 'read', 'submit', 'work', 'operate', 'admin'",
    ),
    ("tokens create ci --scope work --expires 2001-01-01", 2, "invalid_input", "cannot expire before it is created"),
    ("tokens create ci --scope work --expires soon", 2, "usage", "neither a time like"),
    ("tokens revoke nothing", 3, "not_found", "there is no token 'nothing'"),
    ("work", 2, "usage", "name a worker (module:worker), or a command after --"),
    ("work app:worker --processes 0", 2, "usage", "0 is not in the range"),
    ("work app:worker --workspace w", 2, "usage", "a worker names its workspace itself"),
]


@pytest.mark.parametrize(("line", "code", "name", "part"), MISTAKES, ids=[line for line, _, _, _ in MISTAKES])
def test_mistake_is_reported_in_one_line(terminal: Terminal, line: str, code: int, name: str, part: str) -> None:
    terminal.text("migrate")
    output = terminal.run(*terminal.fill(line), stdin=TASK)
    assert output.code == code
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert part in output.err
    again = terminal.run(*terminal.fill(line), "--json", stdin=TASK)
    assert again.code == code
    assert json.loads(again.err)["code"] == name
    assert again.out == ""


def test_refused_review_is_reported_among_the_others(terminal: Terminal) -> None:
    done = terminal.run("dlq", "retry", terminal.dead(), terminal.ready(), NOBODY)
    assert done.code == 4
    assert "ready" in done.out
    assert [line.split(" ")[0] for line in done.err.splitlines()] == ["error:", "error:"]


def test_unknown_task_is_reported_among_the_others(terminal: Terminal) -> None:
    done = terminal.run("cancel", terminal.ready(), "my-own-name", "--json")
    assert done.code == 3
    cancelled, unknown = json.loads(done.out)
    assert cancelled["status"] == "cancelled"
    assert unknown["error"]["code"] == "not_found"
    output = terminal.run("cancel", "my-own-name")
    assert (output.code, output.out) == (3, "")
    assert "there is no task 'my-own-name'" in output.err


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b'{"type": "code"', "line 1 column 16"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b'"code"', "expected a task, a list of tasks or a DAG"),
        (b"null", "got null"),
        (b'{"tpye": "code"}', "contains unknown field `tpye`"),
        (b'[{"type": "code"}, {"type": 7}]', "(at tasks[1].type)"),
        (b'{"tasks": [{"key": "a", "type": "t", "dependencies": ["a"]}]}', "ircular"),
        (b"[" * 100_000, "nested too deeply"),
        (b"", "line 1 column 1"),
    ],
)
def test_invalid_file_is_refused_whole(terminal: Terminal, tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    for given in (
        terminal.run("submit", "-f", str(tmp_path / "bad.json")),
        terminal.run("submit", "-f", "-", stdin=content),
    ):
        assert given.code == 2
        assert part in given.err
    terminal.text("migrate")
    assert terminal.json("list")["tasks"] == []


def test_mistyped_path_creates_no_queue(terminal: Terminal, tmp_path: Path) -> None:
    for line in (
        "list",
        "show x",
        "cancel x",
        "dlq",
        "agents",
        "tokens",
        "tokens revoke x",
        "breakers reset x",
        "sinks remove x",
        "agents heartbeat x",
        "triggers pause x",
        "status",
        "events",
        "pause",
        "maintenance",
        "migrate --check",
    ):
        output = terminal.run(*line.split(), "--json")
        assert output.code == 5
        assert json.loads(output.err)["code"] == "store_unavailable"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["submit", "submit code --payload x", "submit --file none.json"])
def test_invalid_command_creates_no_queue(terminal: Terminal, tmp_path: Path, line: str) -> None:
    assert terminal.run(*line.split()).code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("work.db", 2, "'work.db' is not a kind of store"),
        ("mysql://host/db", 2, "'mysql' is not a kind of store (at --store). Use sqlite:///file.db, postgresql://…"),
        ("sqlite:///", 2, "names no file"),
        ("sqlite:////nowhere/at/all.db", 5, "the folder /nowhere/at does not exist"),
        ("postgresql://nobody@127.0.0.1:1/none", 5, "PostgreSQL: "),
        ("postgresql://127.0.0.1:99999/x", 2, "the address cannot be used: connect(): port must be 0-65535"),
        ("postgresql://127.0.0.1:port/x", 2, "the address cannot be used"),
        ("postgresql://[::1/x", 2, "the address cannot be used: Invalid IPv6 URL"),
        ("sqlite:////", 5, "/ is a folder"),
    ],
)
def test_unavailable_store_is_named(terminal: Terminal, url: str, code: int, part: str) -> None:
    output = terminal.run("submit", "code", "--store", url)
    assert output.code == code
    assert part in output.err


@pytest.mark.parametrize("url", ["sqlite://:memory:", "sqlite:///:memory:"])
@pytest.mark.parametrize(
    "line",
    [
        *["submit code", "list", "settings", "migrate", "doctor", "prove", "serve", "mcp", "restore {file}"],
        *["work app:worker", "work --type code --until-idle -- true", "copy {store} {url}", "copy {url} {store}"],
    ],
)
def test_in_memory_queue_is_refused(terminal: Terminal, line: str, url: str) -> None:
    words = line.format(file=terminal.file(), store=terminal.url, url=url).split()
    terminal.text("migrate")
    output = terminal.run("--store", url, *words)
    assert (output.code, output.out) == (2, "")
    assert "a queue in memory ends with its process" in output.err


def test_last_named_store_counts(terminal: Terminal) -> None:
    terminal.ready()
    assert len(terminal.run("list", "--store", terminal.url, SHIFTWORK_STORE="sqlite://:memory:").out.splitlines()) == 2


def test_file_that_is_not_a_queue_is_refused(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_text("Dear diary, today I was not a database.\n" * 50)
    assert terminal.run("list").code == 5
    output = json.loads(terminal.run("list", "--json").err)
    assert output["code"] == "store_damaged"
    assert "restore a snapshot or a copy" in output["hint"]


@pytest.mark.parametrize("line", ["list", "submit code"])
def test_unusable_lock_file_is_reported(terminal: Terminal, tmp_path: Path, line: str) -> None:
    terminal.ready()
    (tmp_path / "queue.db.turn").unlink()
    (tmp_path / "queue.db.turn").mkdir()
    output = terminal.run(*line.split(), "--json")
    assert (output.code, output.out) == (5, "")
    error = json.loads(output.err)
    assert error["code"] == "store_unavailable"
    assert error["where"] == str(tmp_path / "queue.db.turn")
    assert error["what"].endswith("cannot be opened: Is a directory")
    assert "cannot be opened: Is a directory" in terminal.run("doctor").out


def test_unwritable_lock_file_is_reported(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.ready()
    whole = os.open

    def refusing(path: Any, *known: Any, **named: Any) -> int:
        """Refuse writes, as the system does for everyone but root."""
        if str(path).endswith(".turn"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return whole(path, *known, **named)

    monkeypatch.setattr(os, "open", refusing)
    output = terminal.run("list", "--json")
    assert output.code == 5
    assert json.loads(output.err)["code"] == "store_read_only"
    assert f"{tmp_path}/queue.db.turn cannot be opened: Permission denied" in output.err


@pytest.mark.parametrize("line", ["list", "show {task}", "claim --json"])
@pytest.mark.parametrize("value", ["cast(x'7b22ff' as text)", "'{half'"], ids=["no text", "no JSON"])
def test_damaged_row_is_reported_in_one_line(terminal: Terminal, line: str, value: str) -> None:
    task = terminal.ready()
    connection = apsw.Connection(terminal.url.removeprefix("sqlite:///"))
    connection.execute(f"update bodies set body = {value}")
    connection.close()
    output = terminal.run(*line.format(task=task).split(), "--json")
    assert output.code == 5
    assert output.out == ""
    assert json.loads(output.err)["code"] == "store_damaged"


@pytest.mark.parametrize("option", ["--store", "--workspace", "--actor", "--token"])
@pytest.mark.parametrize("value", ["", " "])
def test_empty_option_value_is_refused(terminal: Terminal, tmp_path: Path, option: str, value: str) -> None:
    """A shell passes an unset variable like this."""
    for line in ([option, value, "submit", "code"], ["submit", "code", option, value]):
        output = terminal.run(*line)
        assert output.code == 2
        assert f"Invalid value for '{option}'" in output.err
        assert "must not be empty" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["claim", "submit code", "list", "work --type t --until-idle"])
def test_empty_agent_name_is_refused(terminal: Terminal, line: str) -> None:
    terminal.ready()
    output = terminal.run(*line.split(), "--agent", "", *(["--", "true"] if line.startswith("work") else []))
    assert output.code == 2
    assert "must not be empty" in output.err
    assert {task["status"] for task in terminal.json("list")["tasks"]} == {"ready"}


def test_empty_environment_variable_counts_as_unset(terminal: Terminal) -> None:
    terminal.ready()
    assert terminal.run("list", SHIFTWORK_WORKSPACE="", SHIFTWORK_ACTOR="", SHIFTWORK_TOKEN="").code == 0


def test_unmigrated_database_asks_for_migrate(postgres_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    for url in (postgres_dsn, f"sqlite:///{tmp_path}/queue.db"):
        terminal = Terminal(url)
        output = terminal.run("list", "--json")
        assert output.code == 5
        assert json.loads(output.err)["code"] == "store_needs_migration"
        assert "shiftwork migrate" in output.err
        assert terminal.run("migrate", "--check").code == 1
        assert json.loads(terminal.run("migrate", "--check", "--json").out)["up_to_date"] is False
        assert terminal.text("migrate").startswith("The schema is up to date")
        assert terminal.json("list")["tasks"] == []


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANING) == set(ExitCode)


def test_every_error_has_an_exit_code() -> None:
    codes = {kind.__name__: code_of(kind("x")) for kind in all_errors()}
    assert codes["ShiftworkError"] == ExitCode.FAILED
    assert [name for name, code in codes.items() if code == ExitCode.FAILED] == ["ShiftworkError"]
    assert codes["OperationTimeout"] == codes["StoreLocked"] == ExitCode.UNAVAILABLE


@pytest.mark.parametrize(("line", "code"), [((), 0), (("artifacts",), 2)])
def test_command_group_without_subcommand_shows_its_help(terminal: Terminal, line: tuple[str, ...], code: int) -> None:
    shown = terminal.run(*line)
    assert (shown.code, shown.err) == (code, "")
    assert shown.out == terminal.text(*line, "--help")
    assert len(shown.out.splitlines()) > 10
