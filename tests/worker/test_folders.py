"""Folders and notes of runs: one at a time in a folder, and nobody is killed for another's process id."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shiftwork.duties.presence import Process, process_of
from shiftwork.worker.folders import Folders
from shiftwork.worker.group import MARK, Run, kill, marked
from shiftwork.worker.output import Said
from shiftwork.worker.telling import LONGEST_MESSAGE, MOST_MESSAGES, Words
from tests.worker.desk import alive
from tests.worker.steps import until

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "base")
    made.make()
    return made


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a note names by mistake: its id was another's before."""
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


def test_a_process_that_only_has_the_same_id_is_left_alone(
    folders: Folders, bystander: subprocess.Popen[bytes]
) -> None:
    now = process_of(bystander.pid)
    assert now is not None
    for other in (Process(now.machine, now.pid, "1"), Process("another machine", now.pid, now.started)):
        file = note(folders, Run("mark", other))
        assert folders.end_orphans() == 0
        assert not file.exists()
    assert bystander.poll() is None


async def test_what_a_note_names_is_ended_with_its_group(folders: Folders) -> None:
    script = f"{sys.executable} -c 'import time; time.sleep(600)' & echo $!; wait"
    with started(["sh", "-c", script]) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        note(folders, Run("mark", process_of(leader.pid)))
        folders.end_orphans()
        assert leader.wait() == -9
    await until(lambda: not alive(child))


def test_what_has_left_its_group_is_found_by_its_mark() -> None:
    with started(SLEEP, "our-mark") as process:
        assert marked("our-mar") == []
        assert kill(Run("our-mark")) == 1
        assert process.wait() == -9


def test_a_broken_note_is_put_away(folders: Folders) -> None:
    file = note(folders, Run("mark"))
    file.write_text("{")
    assert folders.end_orphans() == 0
    assert not file.exists()


async def test_one_at_a_time_works_in_a_folder(folders: Folders) -> None:
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


async def test_a_run_under_way_is_no_orphan(folders: Folders, bystander: subprocess.Popen[bytes]) -> None:
    async with folders.take(folders.base / "one") as place:
        place.announce(Run(place.mark, process_of(bystander.pid)))
        assert folders.end_orphans() == 0
        assert bystander.poll() is None


# -- what is told ------------------------------------------------------------------------------------------------------


def test_words_that_follow_words_are_one_message_and_the_last_count() -> None:
    words = Words()
    for part in ("a" * 3_000, "b" * 3_000):
        words.add(Said("text", part))
    left_out, told = words.take()
    assert left_out.text == "[2000 characters are left out]"
    assert told.text == "a" * (LONGEST_MESSAGE - 3_000) + "b" * 3_000
    assert words.take() == []


def test_of_many_messages_the_last_are_told() -> None:
    words = Words()
    for number in range(MOST_MESSAGES + 5):
        words.add(Said("tool_call", str(number)))
    told = words.take()
    assert told[0].text == "[5 characters are left out]"
    assert [said.text for said in told[1:]] == [str(number) for number in range(5, MOST_MESSAGES + 5)]


def test_both_streams_are_told_apart() -> None:
    words = Words()
    for said in (Said("text", "a"), Said("text", "b", {"stream": "stderr"}), Said("text", "c", {"stream": "stderr"})):
        words.add(said)
    assert [said.text for said in words.take()] == ["a", "bc"]


def test_tasks_of_other_workspaces_have_folders_of_their_own(folders: Folders) -> None:
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
