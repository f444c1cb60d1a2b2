"""`bridge loki`: its text and JSON output, and its refusals."""

import fcntl
import json
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    made = Terminal(f"sqlite:///{tmp_path}/queue.db", tmp_path)
    made.text("settings", "profile", "loki")
    return made


def test_bridge_creates_and_shows_its_folder(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    output = terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once")
    assert [line.split() for line in output.splitlines()][:3] == [
        ["file", "tasks"],
        ["pending.json", "1"],
        ["in-progress.json", "0"],
    ]
    report = terminal.json("bridge", "loki", str(tmp_path / ".loki"), "--once")
    assert (report["tasks"]["pending"], report["taken"], report["broken"]) == (1, {}, [])


def test_import_reports_accepted_and_skipped_files(terminal: Terminal, tmp_path: Path) -> None:
    queue = tmp_path / ".loki" / "queue"
    queue.mkdir(parents=True)
    tasks = [{"id": "a", "type": "code", "payload": {"n": 1}}, {"id": "b", "type": "code", "colour": "red"}]
    (queue / "pending.json").write_text(json.dumps({"tasks": tasks}))
    (queue / "completed.json").write_text("{")
    output = terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--import")
    assert "submitted from the files: 1" in output
    assert "in the files and not in the queue: 1" in output
    assert "left untouched: folder_unavailable: completed.json is not a list of tasks" in output


@pytest.mark.requirement("L-039", "L-055")
def test_claim_without_the_folder_lock_exits_with_1(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    terminal.text("settings", "set", "lock_timeout_sec", "0.05")
    with (tmp_path / ".loki" / "state" / "locks" / "queue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = terminal.run("claim", "--agent", "a1", "--json")
    assert (done.code, json.loads(done.err)["code"]) == (1, "lock_timeout")
    assert terminal.text("claim", "--agent", "a1").startswith("task_")


def test_profile_with_heartbeat_timeout_prints_a_warning(terminal: Terminal, tmp_path: Path) -> None:
    line = ("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    assert "heartbeats" not in terminal.run(*line).err
    terminal.text("settings", "profile", "standard")
    assert "taken away after 90 s of silence; use the profile loki" in terminal.run(*line).err


def test_unsetting_claim_folder_ends_two_way_mode(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    (tmp_path / ".loki" / "queue" / "pending.json").write_text("{")
    assert json.loads(terminal.run("claim", "--json").err)["code"] == "folder_unavailable"
    terminal.text("settings", "unset", "claim_folder")
    assert terminal.text("claim").startswith("task_")


def test_bridge_is_refused_through_a_server(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("--store", "http://127.0.0.1:9", "bridge", "loki", str(tmp_path), "--once")
    assert (done.code, "not a server" in done.err) == (2, True)
