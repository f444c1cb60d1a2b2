"""A snapshot is the whole queue in one file: it restores exactly, and a changed file is refused."""

import asyncio
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.model.errors import (
    InputError,
    ShiftworkError,
    SnapshotDamaged,
    SnapshotFailed,
    SnapshotsUnavailable,
    StoreNotEmpty,
)
from shiftwork.snapshots import copy, snapshot_file
from shiftwork.snapshots.copy import checksum, restore, save
from shiftwork.snapshots.row_batches import Digest
from shiftwork.testing import MovedClock
from tests.conformance.steps import take
from tests.copying.filling import fill
from tests.copying.test_copy import kill_in_the_middle


async def taken(queue: Queue, path: Path) -> snapshot_file.Head:
    return await save(queue.url, path, queue.now())


async def test_snapshot_can_be_restored_into_either_store(
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
    async with Queue.open(other_url, clock=clock) as other:
        await other.complete(held, {"answer": 42})


async def _held(queue: Queue) -> str:
    await queue.submit(type="code")
    return (await take(queue)).token


async def test_snapshot_is_readable_only_by_its_owner(queue: Queue, tmp_path: Path) -> None:
    await taken(queue, tmp_path / "a.snapshot")
    assert (tmp_path / "a.snapshot").stat().st_mode & 0o777 == 0o600


async def test_snapshot_head_is_readable_text(queue: Queue, tmp_path: Path) -> None:
    await queue.submit(type="code")
    head = await taken(queue, tmp_path / "a.snapshot")
    with (tmp_path / "a.snapshot").open("rb") as opened:
        first, found = opened.readline(), opened.readline()
    assert first.startswith(b"shiftwork snapshot 1 ")
    assert msgspec.json.decode(found)["counts"]["tasks"] == 1
    assert snapshot_file.read_head(tmp_path / "a.snapshot") == head


async def test_restore_into_a_queue_with_tasks_is_refused(queue: Queue, tmp_path: Path) -> None:
    await queue.submit(type="code")
    await taken(queue, tmp_path / "a.snapshot")
    before = await checksum(queue.url)
    with pytest.raises(StoreNotEmpty):
        await restore(tmp_path / "a.snapshot", queue.url)
    assert await checksum(queue.url) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A snapshot with some rows, as bytes."""
    folder = tmp_path_factory.mktemp("whole")

    async def make() -> None:
        async with Queue.open(f"sqlite:///{folder}/queue.db") as queue:
            await queue.submit_many([{"type": "code", "payload": {"n": n}} for n in range(50)])
            await taken(queue, folder / "a.snapshot")

    asyncio.run(make())
    return (folder / "a.snapshot").read_bytes()


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/target.db"


async def refused(raw: bytes, tmp_path: Path, target: str) -> ShiftworkError:
    """Return the error for such a file; the target must stay empty."""
    path = tmp_path / "changed.snapshot"
    path.write_bytes(raw)
    with pytest.raises(ShiftworkError) as caught:
        await restore(path, target)
    async with Queue.open(target) as empty:
        assert (await empty.status()).counts == {}
    return caught.value


@pytest.mark.parametrize("at", [0, 30, 100, snapshot_file.HEAD_BYTES - 1, snapshot_file.HEAD_BYTES, -1])
async def test_snapshot_with_a_changed_byte_is_refused(at: int, whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(_changed(whole, at), tmp_path, target)).code == "snapshot_damaged"


async def test_every_changed_byte_is_detected(whole: bytes, tmp_path: Path) -> None:
    # Some changes of a compressed stream leave the rows as they were: those are noticed, too.
    for at in (*range(0, snapshot_file.HEAD_BYTES, 97), *range(snapshot_file.HEAD_BYTES, len(whole))):
        with pytest.raises(SnapshotDamaged):
            await _rows(_changed(whole, at), tmp_path)


async def test_recompressed_rows_are_refused(whole: bytes, tmp_path: Path) -> None:
    """A changed byte can have this effect, which no checksum of rows detects."""
    rows = zlib.decompress(whole[snapshot_file.HEAD_BYTES :])
    with pytest.raises(SnapshotDamaged):
        await _rows(whole[: snapshot_file.HEAD_BYTES] + zlib.compress(rows, 9), tmp_path)


async def test_old_format_with_invalid_text_is_refused(whole: bytes, tmp_path: Path) -> None:
    frame = b"\x92\xa2\xff\xfe\x90"  # two bytes for the table's name that no text has, and no rows
    old = _without_body_hash(whole, tmp_path)[: snapshot_file.HEAD_BYTES]
    with pytest.raises(SnapshotDamaged):
        await _rows(old + zlib.compress(len(frame).to_bytes(4, "big") + frame), tmp_path)


async def test_old_format_gives_its_rows_or_is_refused(whole: bytes, tmp_path: Path) -> None:
    old = _without_body_hash(whole, tmp_path)
    rows = await _rows(old, tmp_path)
    assert rows.counts["tasks"] == 50
    for at in range(snapshot_file.HEAD_BYTES, len(old)):
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
    head = msgspec.structs.replace(snapshot_file.read_head(path), body=None)
    return snapshot_file._write_head(head) + raw[snapshot_file.HEAD_BYTES :]


async def _rows(raw: bytes, tmp_path: Path) -> Digest:
    """Read all rows of a file and return a digest of them."""
    path = tmp_path / "some.snapshot"
    path.write_bytes(raw)
    digest = Digest()
    async with snapshot_file.reading(path) as snapshot:
        async for batch in snapshot.batches():
            digest.add(batch)
    return digest


@pytest.mark.parametrize(
    "left", [0, 1, 100, snapshot_file.HEAD_BYTES - 1, snapshot_file.HEAD_BYTES, snapshot_file.HEAD_BYTES + 1, -100, -1]
)
async def test_truncated_snapshot_is_refused(left: int, whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(whole[:left], tmp_path, target)).code == "snapshot_damaged"


async def test_snapshot_with_trailing_bytes_is_refused(whole: bytes, tmp_path: Path, target: str) -> None:
    assert (await refused(whole + b"x", tmp_path, target)).code == "snapshot_damaged"


async def test_body_of_another_snapshot_is_refused(queue: Queue, whole: bytes, tmp_path: Path, target: str) -> None:
    await taken(queue, tmp_path / "other.snapshot")
    other = (tmp_path / "other.snapshot").read_bytes()
    mixed = other[: snapshot_file.HEAD_BYTES] + whole[snapshot_file.HEAD_BYTES :]
    assert (await refused(mixed, tmp_path, target)).code == "snapshot_damaged"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda schema: (*schema, (9999, "later", "x")), "store_newer"),
        (lambda schema: schema[:-3], "store_needs_migration"),
        (lambda schema: ((*schema[0][:2], "x"), *schema[1:]), "store_unsuitable"),
    ],
    ids=["newer", "older", "other"],
)
async def test_snapshot_of_another_schema_is_refused(
    change: object, code: str, whole: bytes, tmp_path: Path, target: str
) -> None:
    path = tmp_path / "a.snapshot"
    path.write_bytes(whole)
    head = snapshot_file.read_head(path)
    other = msgspec.structs.replace(head, schema=change(head.schema))  # type: ignore[operator]  # one of the three above
    error = await refused(snapshot_file._write_head(other) + whole[snapshot_file.HEAD_BYTES :], tmp_path, target)
    assert error.code == code


async def test_snapshot_of_a_newer_format_is_refused(whole: bytes, tmp_path: Path, target: str) -> None:
    newer = whole.replace(b"shiftwork snapshot 1 ", b"shiftwork snapshot 2 ", 1)
    assert (await refused(newer, tmp_path, target)).code == "store_newer"


async def test_missing_snapshot_file_is_refused(tmp_path: Path, target: str) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SnapshotDamaged):
            await restore(path, target)


def snapshots_in(folder: Path) -> list[str]:
    return [path.suffix for path in folder.glob("*snapshot*") if path.is_file()]


async def test_killed_snapshot_leaves_only_a_part_file(queue: Queue, tmp_path: Path) -> None:
    await queue.submit_many([{"type": "code"}] * 20)
    await kill_in_the_middle("save", queue.url, str(tmp_path / "a.snapshot"))
    assert snapshots_in(tmp_path) == [".part"]
    await taken(queue, tmp_path / "a.snapshot")
    assert snapshot_file.read_head(tmp_path / "a.snapshot").counts["tasks"] == 20


async def test_killed_restore_leaves_nothing_and_can_be_repeated(queue: Queue, other_url: str, tmp_path: Path) -> None:
    await queue.submit_many([{"type": "code"}] * 20)
    await taken(queue, tmp_path / "a.snapshot")
    await kill_in_the_middle("restore", str(tmp_path / "a.snapshot"), other_url)
    async with Queue.open(other_url) as other:
        assert (await other.status()).counts == {}
    assert (await restore(tmp_path / "a.snapshot", other_url)).counts["tasks"] == 20


async def test_unwritable_snapshot_path_fails_without_leftovers(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SnapshotFailed) as failed:
        await taken(queue, tmp_path / "file" / "a.snapshot")
    assert "cannot be written" in failed.value.what


async def test_full_disk_fails_the_snapshot_without_leftovers(queue: Queue) -> None:
    """A device that is always full."""
    async with copy.reading(queue.url) as source:
        with pytest.raises(SnapshotFailed):
            await snapshot_file.write(source, Path("/dev/full/a.snapshot"), 0.0)


async def test_snapshot_is_stored_in_the_folder_and_listed(store_url: str, clock: MovedClock, tmp_path: Path) -> None:
    async with Queue.open(store_url, clock=clock, snapshots=str(tmp_path / "kept")) as queue:
        assert await queue.snapshots.list() == []
        first = await queue.snapshots.take()
        clock.advance(60)
        await queue.submit(type="code")
        second = await queue.snapshots.take()
        assert await queue.snapshots.list() == [second, first]
        assert second.checksum != first.checksum
        assert second.size == (tmp_path / "kept" / second.name).stat().st_size
        (event,) = [event for event in (await queue.events()).events if "snapshot.taken" in event.names][1:]
        assert event.data == {"name": second.name, "size": second.size, "checksum": second.checksum}
        (tmp_path / "kept" / first.name).write_bytes(b"broken")
        assert await queue.snapshots.list() == [second]


async def test_without_a_folder_snapshots_are_unavailable(postgres_dsn: str) -> None:
    async with Queue.open(postgres_dsn) as queue:
        for call in (queue.snapshots.take, queue.snapshots.list):
            with pytest.raises(SnapshotsUnavailable):
                await call()


async def test_in_memory_queue_has_no_snapshots() -> None:
    async with Queue.open("sqlite://:memory:", snapshots="somewhere") as queue:
        with pytest.raises(InputError):
            await queue.snapshots.take()
