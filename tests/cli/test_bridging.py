"""`bridge loki`: what it tells people and programs, and what it refuses."""

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


def test_a_folder_is_made_and_shown(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    told = terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once")
    assert [line.split() for line in told.splitlines()][:3] == [
        ["file", "tasks"],
        ["pending.json", "1"],
        ["in-progress.json", "0"],
    ]
    report = terminal.json("bridge", "loki", str(tmp_path / ".loki"), "--once")
    assert (report["tasks"]["pending"], report["taken"], report["broken"]) == (1, {}, [])


def test_what_is_taken_in_and_what_is_not_is_told(terminal: Terminal, tmp_path: Path) -> None:
    queue = tmp_path / ".loki" / "queue"
    queue.mkdir(parents=True)
    tasks = [{"id": "a", "type": "code", "payload": {"n": 1}}, {"id": "b", "type": "code", "colour": "red"}]
    (queue / "pending.json").write_text(json.dumps({"tasks": tasks}))
    (queue / "completed.json").write_text("{")
    told = terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--import")
    assert "submitted from the files: 1" in told
    assert "in the files and not in the queue: 1" in told
    assert "left untouched: folder_unavailable: completed.json is not a list of tasks" in told


@pytest.mark.requirement("L-039", "L-055")
def test_a_claim_that_does_not_get_the_folders_lock_ends_with_1(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    terminal.text("settings", "set", "lock_timeout_sec", "0.05")
    with (tmp_path / ".loki" / "state" / "locks" / "queue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = terminal.run("claim", "--agent", "a1", "--json")
    assert (done.code, json.loads(done.err)["code"]) == (1, "lock_timeout")
    assert terminal.text("claim", "--agent", "a1").startswith("task_")


def test_a_profile_in_which_scripts_lose_their_work_is_warned_about(terminal: Terminal, tmp_path: Path) -> None:
    line = ("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    assert "heartbeats" not in terminal.run(*line).err
    terminal.text("settings", "profile", "standard")
    assert "taken away after 90 s of silence; use the profile loki" in terminal.run(*line).err


def test_two_way_is_ended_by_a_setting(terminal: Terminal, tmp_path: Path) -> None:
    terminal.ready()
    terminal.text("bridge", "loki", str(tmp_path / ".loki"), "--once", "--two-way")
    (tmp_path / ".loki" / "queue" / "pending.json").write_text("{")
    assert json.loads(terminal.run("claim", "--json").err)["code"] == "folder_unavailable"
    terminal.text("settings", "unset", "claim_folder")
    assert terminal.text("claim").startswith("task_")


def test_it_is_done_on_the_database_itself(terminal: Terminal, tmp_path: Path) -> None:
    done = terminal.run("--store", "http://127.0.0.1:9", "bridge", "loki", str(tmp_path), "--once")
    assert (done.code, "not through a server" in done.err) == (2, True)
