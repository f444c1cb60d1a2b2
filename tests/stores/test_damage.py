"""A file that is damaged is told as such, with the way back; nothing of it is taken for an outage or a mistake."""

from pathlib import Path

import apsw
import pytest

from shiftwork import Queue
from shiftwork.copying.copy import copy
from shiftwork.core import ids
from shiftwork.core.errors import StoreDamaged, StoreUnavailable
from shiftwork.queue.read import read_body
from shiftwork.store import damage

PAGE = 4096
NOT_TEXT = "update bodies set body = cast(x'7b22ff41' as text)"
NOT_JSON = "update bodies set body = '{half'"


async def written(tmp_path: Path, *, tasks: int = 1) -> tuple[Path, str]:
    """The file of a queue with tasks in it, and the id of one."""
    file = tmp_path / "work.db"
    async with await Queue.open(f"sqlite:///{file}") as queue:
        made = await queue.submit_many([{"type": "code", "payload": {"n": n, "text": "x" * 400}} for n in range(tasks)])
    return file, made[0].id


def change(file: Path, statement: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(statement)
    connection.close()


def break_pages(file: Path) -> None:
    """All but the first pages, which say what tables there are."""
    change(file, "pragma wal_checkpoint(truncate)")
    bytes_ = bytearray(file.read_bytes())
    for start in range(len(bytes_) // 2 // PAGE * PAGE, len(bytes_), PAGE):
        bytes_[start : start + 64] = b"\xaa" * 64
    file.write_bytes(bytes_)


@pytest.mark.parametrize(
    ("statement", "part"), [(NOT_TEXT, "is not UTF-8"), (NOT_JSON, "is not JSON")], ids=["text", "json"]
)
async def test_a_row_that_cannot_be_read_is_damage(tmp_path: Path, statement: str, part: str) -> None:
    file, task = await written(tmp_path)
    change(file, statement)
    async with await Queue.open(f"sqlite:///{file}") as queue:
        write = queue.engine.store.run(lambda tx: read_body(tx, str(ids.parse(task))))
        for call in (queue.get(task), queue.tasks(), write):
            with pytest.raises(StoreDamaged, match=part) as told:
                await call
            assert "restore a snapshot or a copy" in told.value.how_to_mend
        other = await queue.submit(type="other")  # what is whole can be worked with
        assert (await queue.get(other.id)).type == "other"
    assert any(part in found and "bodies.body of " in found for found in damage.look(file).damage)


async def test_text_that_cannot_be_read_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    file, task = await written(tmp_path)
    change(file, NOT_TEXT)
    async with await Queue.open(f"sqlite:///{file}") as queue:
        with pytest.raises(StoreDamaged) as told:
            await queue.engine.store.run(lambda tx: read_body(tx, str(ids.parse(task))))
        change(file, "pragma user_version = 7")  # another process writes meanwhile
        await queue.submit(type="other")
    assert told.value.code == "store_damaged"  # which holds on to all that was under way


async def test_the_task_whose_json_is_damaged_is_named(tmp_path: Path) -> None:
    file, task = await written(tmp_path)
    change(file, NOT_JSON)
    async with await Queue.open(f"sqlite:///{file}") as queue:
        with pytest.raises(StoreDamaged) as told:
            await queue.tasks()
    assert told.value.facts == {"task_id": task}


async def test_text_that_cannot_be_read_is_not_copied(tmp_path: Path) -> None:
    file, _ = await written(tmp_path)
    change(file, NOT_TEXT)
    with pytest.raises(StoreDamaged):
        await copy(f"sqlite:///{file}", f"sqlite:///{tmp_path}/copy.db")


async def test_broken_pages_are_damage(tmp_path: Path) -> None:
    file, task = await written(tmp_path, tasks=2000)
    break_pages(file)
    assert damage.look(file).damage
    with pytest.raises(StoreDamaged, match="malformed"):
        async with await Queue.open(f"sqlite:///{file}") as queue:
            await queue.get(task)


async def test_a_whole_file_has_no_damage_and_one_too_large_for_the_time_is_looked_at_in_part(tmp_path: Path) -> None:
    file, _ = await written(tmp_path, tasks=50)
    assert damage.look(file) == damage.Seen([], whole=True)
    assert damage.look(file, seconds=-1) == damage.Seen([], whole=False)


async def test_no_more_damage_is_told_than_helps(tmp_path: Path) -> None:
    file, _ = await written(tmp_path, tasks=50)
    change(file, NOT_JSON)
    assert len(damage.look(file).damage) == damage.MOST


async def test_a_ledger_of_migrations_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    file, _ = await written(tmp_path)
    change(file, "update migrations set name = cast(x'ff' as text)")
    with pytest.raises(StoreDamaged) as told:
        await Queue.open(f"sqlite:///{file}")
    assert told.value.where == str(file)


async def test_a_folder_is_told_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a folder") as told:
        await Queue.open(f"sqlite:///{tmp_path}")
    assert told.value.how_to_mend == "Name a file, in it or elsewhere."
