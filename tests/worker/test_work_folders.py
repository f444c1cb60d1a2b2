"""Folders and records of runs: one run at a time per folder, and no process is killed because of a reused id."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shiftwork.agents.known_process import Process, process_of
from shiftwork.worker.live_report import MAX_MESSAGE_LENGTH, MAX_MESSAGES, MessageBuffer
from shiftwork.worker.output import AgentMessage
from shiftwork.worker.process_group import MARK, Run, kill, marked
from shiftwork.worker.work_folders import Folders
from tests.worker.command_runner import alive
from tests.worker.steps import until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "base")
    made.make()
    return made


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose id is in an outdated record of another process."""
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        yield process
        process.kill()


def started(command: list[str], mark: str = "none") -> subprocess.Popen[bytes]:
    environment = {**os.environ, MARK: mark}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)


def note(folders: Folders, run: Run) -> Path:
    file = folders.base / ".runs" / "left.json"
    file.write_bytes(msgspec.json.encode(run))
    return file


def test_process_with_a_reused_id_is_not_killed(folders: Folders, bystander: subprocess.Popen[bytes]) -> None:
    now = process_of(bystander.pid)
    assert now is not None
    for other in (Process(now.machine, now.pid, "1"), Process("another machine", now.pid, now.started)):
        file = note(folders, Run("mark", other))
        assert folders.end_orphans() == 0
        assert not file.exists()
    assert bystander.poll() is None


async def test_recorded_process_is_ended_with_its_group(folders: Folders) -> None:
    script = f"{sys.executable} -c 'import time; time.sleep(600)' & echo $!; wait"
    with started(["sh", "-c", script]) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        note(folders, Run("mark", process_of(leader.pid)))
        folders.end_orphans()
        assert leader.wait() == -9
    await until(lambda: not alive(child))


def test_process_outside_its_group_is_found_by_its_mark() -> None:
    with started(SLEEP, "our-mark") as process:
        assert marked("our-mar") == []
        assert kill(Run("our-mark")) == 1
        assert process.wait() == -9


def test_broken_run_file_is_removed(folders: Folders) -> None:
    file = note(folders, Run("mark"))
    file.write_text("{")
    assert folders.end_orphans() == 0
    assert not file.exists()


async def test_only_one_run_at_a_time_uses_a_folder(folders: Folders) -> None:
    inside: list[int] = []
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        async with folders.take(folders.base / "one") as place:
            inside.append(number)
            most = max(most, len(inside))
            assert place.path.is_dir()
            await asyncio.sleep(0)
            inside.remove(number)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert most == 1
    assert list((folders.base / ".runs").iterdir()) == []


async def test_active_run_is_not_an_orphan(folders: Folders, bystander: subprocess.Popen[bytes]) -> None:
    async with folders.take(folders.base / "one") as place:
        place.announce(Run(place.mark, process_of(bystander.pid)))
        assert folders.end_orphans() == 0
        assert bystander.poll() is None


def test_consecutive_text_is_joined_and_its_end_kept() -> None:
    words = MessageBuffer()
    for part in ("a" * 3_000, "b" * 3_000):
        words.add(AgentMessage("text", part))
    left_out, found = words.take()
    assert left_out.text == "[2000 characters left out]"
    assert found.text == "a" * (MAX_MESSAGE_LENGTH - 3_000) + "b" * 3_000
    assert words.take() == []


def test_only_the_last_of_many_messages_are_kept() -> None:
    words = MessageBuffer()
    for number in range(MAX_MESSAGES + 5):
        words.add(AgentMessage("tool_call", str(number)))
    found = words.take()
    assert found[0].text == "[5 characters left out]"
    assert [message.text for message in found[1:]] == [str(number) for number in range(5, MAX_MESSAGES + 5)]


def test_stdout_and_stderr_messages_are_kept_apart() -> None:
    words = MessageBuffer()
    for message in (
        AgentMessage("text", "a"),
        AgentMessage("text", "b", {"stream": "stderr"}),
        AgentMessage("text", "c", {"stream": "stderr"}),
    ):
        words.add(message)
    assert [message.text for message in words.take()] == ["a", "bc"]


def test_tasks_of_other_workspaces_have_their_own_folders(folders: Folders) -> None:
    made = msgspec.convert({"id": "task_1", "workspace_id": "default"}, _Task)
    theirs = msgspec.convert({"id": "task_1", "workspace_id": "../shop"}, _Task)
    hidden = msgspec.convert({"id": "task_1", "workspace_id": ".runs"}, _Task)
    assert folders.of(made) == folders.base / "task_1"  # type: ignore[arg-type]  # all of a task that is looked at
    assert folders.of(theirs) == folders.base / "%2E%2E%2Fshop" / "task_1"  # type: ignore[arg-type]  # as above
    assert folders.of(hidden) == folders.base / "%2Eruns" / "task_1"  # type: ignore[arg-type]  # as above
    outside = msgspec.structs.replace(theirs, work_dir=str(folders.base / "task_1"))
    assert folders.named(outside) is None  # type: ignore[arg-type]  # as above


class _Task(msgspec.Struct):
    id: str
    workspace_id: str
    work_dir: str | None = None
