"""The demo does what it says: real processes, one killed during the run, everything completed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shiftwork.demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_demo_recovers_a_killed_agents_task_and_completes() -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is killed (SIGKILL) at" in done.stdout
    assert "recovered: " in done.stdout
    assert "failed at 'Design a wireframe': the model stopped in mid-sentence" in done.stdout
    assert "The DAG is completed: 8 of 8 tasks completed." in done.stdout
    assert "To explore it, keep the file: shiftwork demo --keep" in done.stdout
    assert "\x1b" not in done.stdout


def test_demo_prints_one_json_document_and_keeps_its_file() -> None:
    done = demo("--json", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["tasks"], summary["completed"]) == ("completed", 8, 8)
    assert summary["recovered"] == "Implement the page"
    assert summary["recovered_by"] not in {None, summary["killed"]}
    kept = Path(summary["store"].removeprefix("sqlite:///"))
    assert kept.is_file()
    shutil.rmtree(kept.parent)


def test_demo_works_in_a_removed_folder(tmp_path: Path) -> None:
    line = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m shiftwork demo --json"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_demo_leaves_nothing_behind_when_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "shiftwork", "demo"]
    known = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if " takes " in line:
                break
        agents = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(agents) == 3
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert process.stderr.read() == ""
    assert [agent for agent in agents if Path(f"/proc/{agent}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def test_demo_under_nohup_survives_its_terminal(tmp_path: Path) -> None:
    """As started by `nohup`."""
    command = ["nohup", sys.executable, "-m", "shiftwork.demo", "--json"]
    known = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known) as process:
        while not list(tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert json.loads(out)["status"] == "completed"
