"""Being told that a file was written to, which is how a process hears of another's commits."""

import sys
from pathlib import Path

import pytest

from shiftwork.store.files import Changes, Turn, turn_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells; elsewhere it is polled")


async def test_a_write_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    changes = Changes(file)
    assert not await changes.wait(0.01)
    with file.open("ab") as open_file:
        open_file.write(b"x")
    assert await changes.wait(5)
    assert not await changes.wait(0.01)
    changes.close()


async def test_a_file_that_is_not_there_is_never_told(tmp_path: Path) -> None:
    changes = Changes(tmp_path / "none")
    assert not await changes.wait(0.01)
    changes.close()


async def test_who_tells_of_work_is_heard_by_the_others_alone(tmp_path: Path) -> None:
    ours, theirs = (Turn(tmp_path / "queue.db", patience=1) for _ in range(2))
    changes = Changes(turn_of(tmp_path / "queue.db"))
    with ours:
        pass
    assert not await changes.wait(0.01)  # a turn alone is no news
    with ours:
        ours.tell()
    assert await changes.wait(5)
    assert (ours.told_by_others(), theirs.told_by_others()) == (0, 1)
    with theirs:
        theirs.tell()
    assert (ours.told_by_others(), theirs.told_by_others()) == (1, 1)
    changes.close()
    ours.close()
    theirs.close()


def test_a_file_of_the_turns_that_says_nothing_yet_counts_from_nought(tmp_path: Path) -> None:
    turn_of(tmp_path / "queue.db").write_bytes(b"\n")
    turn = Turn(tmp_path / "queue.db", patience=1)
    other = Turn(tmp_path / "queue.db", patience=1)
    with turn:
        turn.tell()
    assert other.told_by_others() == 1
    turn.close()
    other.close()
