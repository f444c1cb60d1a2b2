"""A snapshot is the whole queue in one file: it comes back as it was, and one that was changed does not come back."""

import asyncio
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.copying import ends, file
from shiftwork.copying.content import Digest
from shiftwork.copying.copy import checksum, restore, save
from shiftwork.core.errors import (
    InputError,
    ShiftworkError,
    SnapshotDamaged,
    SnapshotFailed,
    SnapshotsUnavailable,
    StoreNotEmpty,
)
from shiftwork.testing import MovedClock
from tests.conformance.steps import take
from tests.copying.filling import fill
from tests.copying.test_copy import kill_in_the_middle


async def taken(queue: Queue, path: Path) -> file.Head:
    return await save(queue.url, path, queue.now())


async def test_a_snapshot_comes_back_into_either_store(
    queue: Queue, clock: MovedClock, other_url: str, tmp_path: Path
) -> None:
    await fill(queue, clock)
    held = await _held(queue)
    head = await taken(queue, tmp_path / "a.snapshot")
    assert head.created_at == clock()
    restored = await restore(tmp_path / "a.snapshot", other_url, verify=True)
    assert (restored.counts, restored.checksum) == (head.counts, head.checksum)
    assert await checksum(other_url) == await checksum(queue.url) == restored
    again = await save(other_url, tmp_path / "b.snapshot", 0.0)
    assert (again.checksum, again.counts) == (head.checksum, head.counts)
    async with await Queue.open(other_url, clock=clock) as other:
        await other.complete(held, {"answer": 42})


async def _held(queue: Queue) -> str:
    await queue.submit(type="code")
    return (await take(queue)).token


async def test_a_snapshot_is_for_its_owner_alone(queue: Queue, tmp_path: Path) -> None:
    await taken(queue, tmp_path / "a.snapshot")
    assert (tmp_path / "a.snapshot").stat().st_mode & 0o777 == 0o600


async def test_the_head_can_be_read_by_people(queue: Queue, tmp_path: Path) -> None:
    await queue.submit(type="code")
    head = await taken(queue, tmp_path / "a.snapshot")
    with (tmp_path / "a.snapshot").open("rb") as opened:
        first, told = opened.readline(), opened.readline()
    assert first.startswith(b"shiftwork snapshot 1 ")
    assert msgspec.json.decode(told)["counts"]["tasks"] == 1
    assert file.read_head(tmp_path / "a.snapshot") == head


async def test_into_a_queue_that_has_work_it_is_refused(queue: Queue, tmp_path: Path) -> None:
    await queue.submit(type="code")
    await taken(queue, tmp_path / "a.snapshot")
    before = await checksum(queue.url)
    with pytest.raises(StoreNotEmpty):
        await restore(tmp_path / "a.snapshot", queue.url)
    assert await checksum(queue.url) == before


# -- files that are not what they were ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A snapshot with some rows, as bytes."""
    folder = tmp_path_factory.mktemp("whole")

    async def make() -> None:
        async with await Queue.open(f"sqlite:///{folder}/queue.db") as queue:
            await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(50)])
            await taken(queue, folder / "a.snapshot")

    asyncio.run(make())
    return (folder / "a.snapshot").read_bytes()


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/target.db"


async def refused(raw: bytes, tmp_path: Path, target: str) -> ShiftworkError:
    """The error that such a file is met with; the target is empty afterwards."""
    path = tmp_path / "changed.snapshot"
    path.write_bytes(raw)
    with pytest.raises(ShiftworkError) as caught:
        await restore(path, target)
    async with await Queue.open(target) as empty:
        assert (await empty.status()).counts == {}
    return caught.value


@pytest.mark.parametrize("at", [0, 30, 100, file.HEAD_BYTES - 1, file.HEAD_BYTES, -1])
async def test_a_file_with_a_changed_byte_is_refused(at: int, whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(_changed(whole, at), tmp_path, target)).code == "snapshot_damaged"


async def test_no_byte_can_be_changed_unnoticed(whole: bytes, tmp_path: Path) -> None:
    # Some changes of a compressed stream leave the rows as they were: those are noticed, too.
    for at in (*range(0, file.HEAD_BYTES, 97), *range(file.HEAD_BYTES, len(whole))):
        with pytest.raises(SnapshotDamaged):
            await _rows(_changed(whole, at), tmp_path)


async def test_the_same_rows_written_otherwise_are_refused(whole: bytes, tmp_path: Path) -> None:
    """What a changed byte may come to, and no checksum of rows notices."""
    rows = zlib.decompress(whole[file.HEAD_BYTES :])
    with pytest.raises(SnapshotDamaged):
        await _rows(whole[: file.HEAD_BYTES] + zlib.compress(rows, 9), tmp_path)


async def test_a_file_from_before_bodies_had_a_hash_may_hold_what_is_no_text(whole: bytes, tmp_path: Path) -> None:
    frame = b"\x92\xa2\xff\xfe\x90"  # two bytes for the table's name that no text has, and no rows
    old = _without_body_hash(whole, tmp_path)[: file.HEAD_BYTES]
    with pytest.raises(SnapshotDamaged):
        await _rows(old + zlib.compress(len(frame).to_bytes(4, "big") + frame), tmp_path)


async def test_a_file_from_before_bodies_had_a_hash_gives_its_rows_or_is_refused(whole: bytes, tmp_path: Path) -> None:
    old = _without_body_hash(whole, tmp_path)
    rows = await _rows(old, tmp_path)
    assert rows.counts["tasks"] == 50
    for at in range(file.HEAD_BYTES, len(old)):
        with suppress(SnapshotDamaged):
            await _rows(_changed(old, at), tmp_path)
            path, target = tmp_path / "some.snapshot", f"sqlite:///{tmp_path}/{at}.db"
            assert (await restore(path, target)).checksum == rows.checksum()


def _changed(raw: bytes, at: int) -> bytes:
    changed = bytearray(raw)
    changed[at] ^= 0xFF
    return bytes(changed)


def _without_body_hash(raw: bytes, tmp_path: Path) -> bytes:
    path = tmp_path / "whole.snapshot"
    path.write_bytes(raw)
    head = msgspec.structs.replace(file.read_head(path), body=None)
    return file._write_head(head) + raw[file.HEAD_BYTES :]


async def _rows(raw: bytes, tmp_path: Path) -> Digest:
    """Read all of a file; what its rows come to."""
    path = tmp_path / "some.snapshot"
    path.write_bytes(raw)
    digest = Digest()
    async with file.reading(path) as snapshot:
        async for batch in snapshot.batches():
            digest.add(batch)
    return digest


@pytest.mark.parametrize("left", [0, 1, 100, file.HEAD_BYTES - 1, file.HEAD_BYTES, file.HEAD_BYTES + 1, -100, -1])
async def test_a_file_that_was_cut_off_is_refused(left: int, whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(whole[:left], tmp_path, target)).code == "snapshot_damaged"


async def test_a_file_with_something_after_its_end_is_refused(whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(whole + b"x", tmp_path, target)).code == "snapshot_damaged"


async def test_a_body_that_is_whole_but_of_another_queue_is_refused(
    queue: Queue, whole: bytes, tmp_path: Path, target: str
) -> None:
    await taken(queue, tmp_path / "other.snapshot")
    other = (tmp_path / "other.snapshot").read_bytes()
    mixed = other[: file.HEAD_BYTES] + whole[file.HEAD_BYTES :]
    assert (await refused(mixed, tmp_path, target)).code == "snapshot_damaged"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda schema: (*schema, (9999, "later", "x")), "store_newer"),
        (lambda schema: schema[:-1], "store_needs_migration"),
        (lambda schema: (*schema[:-1], (*schema[-1][:2], "x")), "store_unsuitable"),
    ],
    ids=["newer", "older", "other"],
)
async def test_a_file_of_another_schema_is_refused(
    change: object, code: str, whole: bytes, tmp_path: Path, target: str
) -> None:
    path = tmp_path / "a.snapshot"
    path.write_bytes(whole)
    head = file.read_head(path)
    other = msgspec.structs.replace(head, schema=change(head.schema))  # type: ignore[operator]  # one of the three above
    error = await refused(file._write_head(other) + whole[file.HEAD_BYTES :], tmp_path, target)
    assert error.code == code


async def test_a_file_of_a_newer_format_is_refused(whole: bytes, tmp_path: Path, target: str) -> None:
    newer = whole.replace(b"shiftwork snapshot 1 ", b"shiftwork snapshot 2 ", 1)
    assert (await refused(newer, tmp_path, target)).code == "store_newer"


async def test_what_is_no_file_is_refused(tmp_path: Path, target: str) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SnapshotDamaged):
            await restore(path, target)


# -- killed, and where it cannot be written ----------------------------------------------------------------------


def snapshots_in(folder: Path) -> list[str]:
    return [path.suffix for path in folder.glob("*snapshot*") if path.is_file()]


async def test_a_snapshot_that_is_killed_is_not_there(queue: Queue, tmp_path: Path) -> None:
    await queue.submit_many([{"type": "code"}] * 20)
    await kill_in_the_middle("save", queue.url, str(tmp_path / "a.snapshot"))
    assert snapshots_in(tmp_path) == [".part"]
    await taken(queue, tmp_path / "a.snapshot")
    assert file.read_head(tmp_path / "a.snapshot").counts["tasks"] == 20


async def test_a_restore_that_is_killed_leaves_nothing_and_can_be_made_again(
    queue: Queue, other_url: str, tmp_path: Path
) -> None:
    await queue.submit_many([{"type": "code"}] * 20)
    await taken(queue, tmp_path / "a.snapshot")
    await kill_in_the_middle("restore", str(tmp_path / "a.snapshot"), other_url)
    async with await Queue.open(other_url) as other:
        assert (await other.status()).counts == {}
    assert (await restore(tmp_path / "a.snapshot", other_url)).counts["tasks"] == 20


async def test_where_it_cannot_be_written_nothing_is_left(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SnapshotFailed) as failed:
        await taken(queue, tmp_path / "file" / "a.snapshot")
    assert "cannot be written" in failed.value.what


async def test_a_full_disk_leaves_nothing(queue: Queue) -> None:
    """The device that is always full."""
    async with ends.reading(queue.url) as source:
        with pytest.raises(SnapshotFailed):
            await file.write(source, Path("/dev/full/a.snapshot"), 0.0)


# -- the verbs ---------------------------------------------------------------------------------------------------


async def test_a_snapshot_is_taken_into_the_folder_and_listed(
    store_url: str, clock: MovedClock, tmp_path: Path
) -> None:
    async with await Queue.open(store_url, clock=clock, snapshots=str(tmp_path / "kept")) as queue:
        assert await queue.snapshots() == []
        first = await queue.take_snapshot()
        clock.advance(60)
        await queue.submit(type="code")
        second = await queue.take_snapshot()
        assert await queue.snapshots() == [second, first]
        assert second.checksum != first.checksum
        assert second.size == (tmp_path / "kept" / second.name).stat().st_size
        (event,) = [event for event in (await queue.events())[0] if "snapshot.taken" in event.names][1:]
        assert event.data == {"name": second.name, "size": second.size, "checksum": second.checksum}
        (tmp_path / "kept" / first.name).write_bytes(b"broken")
        assert await queue.snapshots() == [second]


async def test_without_a_folder_there_are_none(postgres_dsn: str) -> None:
    async with await Queue.open(postgres_dsn) as queue:
        for call in (queue.take_snapshot, queue.snapshots):
            with pytest.raises(SnapshotsUnavailable):
                await call()


async def test_a_queue_in_memory_has_none() -> None:
    async with await Queue.open("sqlite://:memory:", snapshots="somewhere") as queue:
        with pytest.raises(InputError):
            await queue.take_snapshot()
