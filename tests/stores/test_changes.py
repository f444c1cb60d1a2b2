"""Being told that a file was written to, which is how a process hears of another's commits."""

import sys
from pathlib import Path

import pytest

from shiftwork.store.files import Changes

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
