"""`snapshot`, `restore` and `copy` for people and scripts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shiftwork.cli.exit_codes import ExitCode
from tests.cli.terminal import Terminal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHIFTWORK_SNAPSHOTS", str(tmp_path / "kept"))
    return tmp_path / "kept"


def tasks(terminal: Terminal) -> list[tuple[str, str, str]]:
    return [(task["id"], task["status"], task["created_at"]) for task in terminal.json("list")["tasks"]]


def test_snapshot_is_taken_listed_and_restored(each_terminal: Terminal, folder: Path, tmp_path: Path) -> None:
    each_terminal.text("submit", "code")
    assert each_terminal.text("snapshot", "list").strip() == "no snapshots"
    output = each_terminal.text("snapshot")
    (found,) = each_terminal.json("snapshot", "list")
    assert output.startswith(found["name"])
    assert found["checksum"] in each_terminal.text("snapshot", "list")
    again = Terminal(f"sqlite:///{tmp_path}/again.db")
    restored = again.json("restore", str(folder / found["name"]), "--verify")
    assert (restored["checksum"], restored["counts"]["tasks"]) == (found["checksum"], 1)
    assert tasks(again) == tasks(each_terminal)


def test_snapshot_is_written_to_the_named_file(each_terminal: Terminal, tmp_path: Path) -> None:
    each_terminal.text("submit", "code")
    output = each_terminal.json("snapshot", "--to", f"{tmp_path}/mine")
    assert output["size"] == (tmp_path / "mine").stat().st_size
    assert output["counts"]["tasks"] == 1
    refused = each_terminal.run("snapshot", "--to", f"{tmp_path}/mine")
    assert (refused.code, "already exists" in refused.err) == (ExitCode.USAGE, True)


def test_queue_is_copied_there_and_back(each_terminal: Terminal, tmp_path: Path) -> None:
    each_terminal.text("submit", "code")
    there, back = f"sqlite:///{tmp_path}/there.db", f"sqlite:///{tmp_path}/back.db"
    output = each_terminal.json("copy", each_terminal.url, there, "--verify")
    assert f"{output['rows']} rows, checksum {output['checksum']}" in each_terminal.text("copy", there, back)
    assert tasks(Terminal(back)) == tasks(each_terminal)
    assert [job["name"] for job in Terminal(back).json("maintenance")] == ["restore"]


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("copy {store} {store}", ExitCode.CONFLICT, "the queue is not empty"),
        ("copy sqlite:///nothing.db sqlite:///new.db", ExitCode.UNAVAILABLE, "there is no queue"),
        ("copy http://127.0.0.1:1 {store}", ExitCode.USAGE, "not a server"),
        ("copy {store} http://127.0.0.1:1", ExitCode.USAGE, "not a server"),
        ("restore nothing.snapshot", ExitCode.UNAVAILABLE, "cannot be read"),
        ("restore nothing.snapshot --store http://127.0.0.1:1", ExitCode.USAGE, "not a server"),
        ("snapshot --to nowhere/a.snapshot", ExitCode.UNAVAILABLE, "cannot be written"),
    ],
)
def test_impossible_snapshot_or_copy_is_refused_with_reason(
    terminal: Terminal, line: str, code: ExitCode, word: str
) -> None:
    terminal.text("submit", "code")
    done = terminal.run(*line.format(store=terminal.url).split())
    assert (done.code, word in done.err) == (code, True), done.err


@pytest.mark.requirement("C-092")
def test_queue_of_a_killed_server_is_restored_from_snapshot(tmp_path: Path) -> None:
    """The database file is lost with the server; its last snapshot is not."""
    store, kept = f"sqlite:///{tmp_path}/queue.db", tmp_path / "kept"
    command = ["serve", "--store", store, "--port", "0", "--snapshots", str(kept), "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "shiftwork", *command], stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        remote = Terminal(json.loads(server.stdout.readline())["url"])
        made = remote.json("submit", "code")
        taken = remote.json("snapshot")
        assert taken["name"] in {each["name"] for each in remote.json("snapshot", "list")}
        server.send_signal(signal.SIGKILL)
    for part in tmp_path.glob("queue.db*"):
        part.unlink(missing_ok=True)
    local = Terminal(store)
    local.text("restore", str(kept / taken["name"]))
    assert local.json("show", made["id"])["status"] == "ready"
