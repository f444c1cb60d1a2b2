"""The demo does what it says: real processes, one killed on the way, everything completed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shiftwork.demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_the_demo_tells_how_a_killed_agents_task_is_recovered_and_all_is_completed() -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is killed (SIGKILL) at" in done.stdout
    assert "recovered: " in done.stdout
    assert "failed at 'Design a wireframe': the model broke off in mid-sentence" in done.stdout
    assert "The DAG is completed: 8 of 8 tasks completed." in done.stdout
    assert "\x1b" not in done.stdout


def test_the_demo_as_json_is_one_document_and_keeps_its_file_when_told_to() -> None:
    done = demo("--json", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["tasks"], summary["completed"]) == ("completed", 8, 8)
    assert summary["recovered"] == "Implement the page"
    assert summary["recovered_by"] not in {None, summary["killed"]}
    kept = Path(summary["store"].removeprefix("sqlite:///"))
    assert kept.is_file()
    shutil.rmtree(kept.parent)
