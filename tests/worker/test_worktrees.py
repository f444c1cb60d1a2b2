"""Worktrees of git for tasks, and sessions that are resumed on another machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.worker import session_files, worktrees
from tests.worker.command_runner import CommandRunner, ask, desk_on

SESSION_AGENT = """
import json, os, pathlib, sys
home = pathlib.Path(os.path.expanduser("~/.agent")); home.mkdir(exist_ok=True)
known = os.environ["SHIFTWORK_SESSION_ID"]
file = home / f"{known or 's-1'}.jsonl"
before = file.read_text() if file.exists() else ""
file.write_text(before + "a turn\\n")
print(json.dumps({"type": "system", "session_id": file.stem}))
if not known: sys.exit(1)
print(json.dumps({"type": "result", "result": f"turns before: {before.count('turn')}", "session_id": file.stem}))
"""


def git(folder: Path, *words: str) -> str:
    line = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost", *words]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "kept.txt").write_text("old\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Begin")
    git(folder, "branch", "release")
    (folder / "kept.txt").write_text("newer\n")
    git(folder, "commit", "-qam", "Continue")
    return folder


@pytest.fixture
def commands(store_url: str, tmp_path: Path) -> Iterator[CommandRunner]:
    with desk_on(store_url, tmp_path) as made:
        yield made


async def patch_of(shop: Queue, artifact_id: str) -> str:
    return b"".join([part async for part in shop.artifacts.get(artifact_id)]).decode()


async def test_each_task_has_a_branch_kept_over_retries_and_a_diff(
    shop: Queue, commands: CommandRunner, repository: Path, tmp_path: Path
) -> None:
    task = await ask(shop, "change it")
    script = (
        "if [ ! -e begun ]; then echo 1 > begun; exit 1; fi;"
        "cat kept.txt; echo new >> kept.txt; echo 2 > more;"
        "git -c user.name=a -c user.email=a@localhost commit -qam More"
    )
    commands.run(["sh", "-c", script], "--worktree", f"{repository}@release")
    done = await shop.get(task)
    assert done.result is not None, commands.log()
    assert (done.status, done.attempts, done.result.text) == ("completed", 1, "old")
    assert git(commands.work_dir / task, "branch", "--show-current").strip() == f"shiftwork/{task}"
    assert git(repository, "status", "--porcelain") == ""
    (patch,) = done.result.artifacts
    text = await patch_of(shop, patch)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "-b", "release", str(repository), str(clone))
    (tmp_path / "patch").write_text(text)
    git(clone, "apply", str(tmp_path / "patch"))
    assert (clone / "kept.txt").read_text() == "old\nnew\n"
    assert ((clone / "begun").read_text(), (clone / "more").read_text()) == ("1\n", "2\n")
    named = {(each.name, each.role) for each in await shop.artifacts.list(task)}
    assert named == {(f"{task}.patch", "made"), (None, "result")}


async def test_cleaned_worktree_leaves_its_branch(sqlite_url: str, tmp_path: Path, repository: Path) -> None:
    with desk_on(sqlite_url, tmp_path) as commands:
        async with Queue.open(sqlite_url) as shop:
            task = await ask(shop, "change it")
            commands.run(["sh", "-c", "echo 2 > more"], "--worktree", str(repository), "--clean")
            assert len((await shop.result(task)).artifacts) == 1
    assert not (commands.work_dir / task).exists()
    assert f"shiftwork/{task}" in git(repository, "branch")


def test_folder_that_is_not_a_repository_is_refused(repository: Path, tmp_path: Path) -> None:
    for text in (str(tmp_path), f"{repository}@nowhere", f"{repository}@--all", f"{tmp_path}/none", f"{repository}@"):
        with pytest.raises(InputError):
            worktrees.parse(text)
    assert worktrees.parse(f"{repository}@release").base == "release"


async def test_session_is_resumed_on_another_machine(
    shop: Queue, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await ask(shop, "x")
    options = ["--session-files", "~/.agent/{session_id}.jsonl", "--output", "stream-json", "--max-tasks", "1"]
    for machine in ("one", "two"):
        (tmp_path / machine / "home").mkdir(parents=True)
        monkeypatch.setenv("HOME", str(tmp_path / machine / "home"))
        with desk_on(store_url, tmp_path / machine) as commands:
            runner = commands.start([sys.executable, "-c", SESSION_AGENT], *options)
            assert runner.wait(60) == 0, commands.log()
    done = await shop.get(task)
    assert done.result is not None
    assert (done.result.text, done.session_id) == ("turns before: 1", "s-1")


def test_session_files_stay_below_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pattern = session_files.check("claude")
    work = Path("/srv/agents/task_1")
    folder = tmp_path / ".claude" / "projects" / "-srv-agents-task-1"
    folder.mkdir(parents=True)
    (folder / "s.jsonl").write_text("hello")
    packed = session_files.pack(pattern, "s", work)
    assert packed is not None
    assert session_files.unpack(pattern, "s", Path("/other/task_1"), packed) == 1
    assert (tmp_path / ".claude" / "projects" / "-other-task-1" / "s.jsonl").read_text() == "hello"
    for bad in ("../s", "a/b", "", ".hidden", "*"):
        assert session_files.pack(pattern, bad, work) is None
    for refused in ("~/x.json", "~/../{session_id}"):
        with pytest.raises(InputError):
            session_files.check(refused)
