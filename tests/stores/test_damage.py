"""A damaged file is reported as damage with a hint, never as an outage or an input error."""

from pathlib import Path

import apsw
import pytest

from shiftwork import Queue
from shiftwork.engine.read import read_body
from shiftwork.model import ids
from shiftwork.model.errors import StoreDamaged, StoreUnavailable
from shiftwork.snapshots.copy import copy
from shiftwork.store import damage

PAGE = 4096
NOT_TEXT = "update bodies set body = cast(x'7b22ff41' as text)"
NOT_JSON = "update bodies set body = '{half'"


async def written(tmp_path: Path, *, tasks: int = 1) -> tuple[Path, str]:
    """The file of a queue with tasks in it, and the id of one."""
    file = tmp_path / "work.db"
    async with Queue.open(f"sqlite:///{file}") as queue:
        made = await queue.submit_many([{"type": "code", "payload": {"n": n, "text": "x" * 400}} for n in range(tasks)])
    return file, made[0].id


def change(file: Path, statement: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(statement)
    connection.close()


def break_pages(file: Path) -> None:
    """Damage all pages but the first ones, which contain the schema."""
    change(file, "pragma wal_checkpoint(truncate)")
    bytes_ = bytearray(file.read_bytes())
    for start in range(len(bytes_) // 2 // PAGE * PAGE, len(bytes_), PAGE):
        bytes_[start : start + 64] = b"\xaa" * 64
    file.write_bytes(bytes_)


@pytest.mark.parametrize(
    ("statement", "part"), [(NOT_TEXT, "is not UTF-8"), (NOT_JSON, "is not valid JSON")], ids=["text", "json"]
)
async def test_unreadable_row_is_reported_as_damage(tmp_path: Path, statement: str, part: str) -> None:
    file, task = await written(tmp_path)
    change(file, statement)
    async with Queue.open(f"sqlite:///{file}") as queue:
        write = queue.engine.store.run(lambda tx: read_body(tx, str(ids.parse(task))))
        for call in (queue.get(task), queue.tasks.list(), write):
            with pytest.raises(StoreDamaged, match=part) as seen:
                await call
            assert "restore a snapshot or a copy" in seen.value.hint
        other = await queue.submit(type="other")  # what is whole can be worked with
        assert (await queue.get(other.id)).type == "other"
    assert any(part in found and "bodies.body of " in found for found in damage.scan(file).damage)


async def test_unreadable_text_leaves_the_writer_usable(tmp_path: Path) -> None:
    file, task = await written(tmp_path)
    change(file, NOT_TEXT)
    async with Queue.open(f"sqlite:///{file}") as queue:
        with pytest.raises(StoreDamaged) as found:
            await queue.engine.store.run(lambda tx: read_body(tx, str(ids.parse(task))))
        change(file, "pragma user_version = 7")  # another process writes meanwhile
        await queue.submit(type="other")
    assert found.value.code == "store_damaged"  # which holds on to all that was under way


async def test_task_with_damaged_json_is_named(tmp_path: Path) -> None:
    file, task = await written(tmp_path)
    change(file, NOT_JSON)
    async with Queue.open(f"sqlite:///{file}") as queue:
        with pytest.raises(StoreDamaged) as found:
            await queue.tasks.list()
    assert found.value.facts == {"task_id": task}


async def test_unreadable_text_is_not_copied(tmp_path: Path) -> None:
    file, _ = await written(tmp_path)
    change(file, NOT_TEXT)
    with pytest.raises(StoreDamaged):
        await copy(f"sqlite:///{file}", f"sqlite:///{tmp_path}/copy.db")


async def test_broken_pages_are_reported_as_damage(tmp_path: Path) -> None:
    file, task = await written(tmp_path, tasks=2000)
    break_pages(file)
    assert damage.scan(file).damage
    with pytest.raises(StoreDamaged, match="malformed"):
        async with Queue.open(f"sqlite:///{file}") as queue:
            await queue.get(task)


async def test_intact_file_has_no_damage_and_large_one_is_checked_in_part(tmp_path: Path) -> None:
    file, _ = await written(tmp_path, tasks=50)
    assert damage.scan(file) == damage.DamageReport([], whole=True)
    assert damage.scan(file, seconds=-1) == damage.DamageReport([], whole=False)


async def test_number_of_damage_reports_is_bounded(tmp_path: Path) -> None:
    file, _ = await written(tmp_path, tasks=50)
    change(file, NOT_JSON)
    assert len(damage.scan(file).damage) == damage.MAX_COUNT


async def test_unreadable_migration_table_is_reported_as_damage(tmp_path: Path) -> None:
    file, _ = await written(tmp_path)
    change(file, "update migrations set name = cast(x'ff' as text)")
    with pytest.raises(StoreDamaged) as found:
        await Queue.open(f"sqlite:///{file}")
    assert found.value.where == str(file)


async def test_folder_as_store_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a folder") as found:
        await Queue.open(f"sqlite:///{tmp_path}")
    assert found.value.hint == "Name a file, in it or elsewhere."
