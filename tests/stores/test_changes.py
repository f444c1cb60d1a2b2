"""File change notifications, by which a process notices commits of others."""

import sys
from pathlib import Path

import pytest

from shiftwork.store.files import FileChanges, WriterLock, turn_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells; elsewhere it is polled")


async def test_write_to_the_file_is_noticed_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    changes = FileChanges(file)
    assert not await changes.wait(0.01)
    with file.open("ab") as open_file:
        open_file.write(b"x")
    assert await changes.wait(5)
    assert not await changes.wait(0.01)
    changes.close()


async def test_missing_file_is_never_noticed(tmp_path: Path) -> None:
    changes = FileChanges(tmp_path / "none")
    assert not await changes.wait(0.01)
    changes.close()


async def test_notification_is_heard_only_by_other_processes(tmp_path: Path) -> None:
    ours, theirs = (WriterLock(tmp_path / "queue.db", patience=1) for _ in range(2))
    changes = FileChanges(turn_of(tmp_path / "queue.db"))
    with ours:
        pass
    assert not await changes.wait(0.01)  # a turn alone is no news
    with ours:
        ours.tell("work")
    assert await changes.wait(5)
    assert (ours.announced_by_others("work"), theirs.announced_by_others("work")) == (0, 1)
    with theirs:
        theirs.tell("work")
    assert (ours.announced_by_others("work"), theirs.announced_by_others("work")) == (1, 1)
    changes.close()
    ours.close()
    theirs.close()


def test_empty_lock_file_counts_from_zero(tmp_path: Path) -> None:
    turn_of(tmp_path / "queue.db").write_bytes(b"\n")
    turn = WriterLock(tmp_path / "queue.db", patience=1)
    other = WriterLock(tmp_path / "queue.db", patience=1)
    with turn:
        turn.tell("work")
    assert other.announced_by_others("work") == 1
    turn.close()
    other.close()
