"""Snapshots are taken by themselves; where that fails, somebody is told and the queue goes on."""

import asyncio
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.copying.copy import restore
from shiftwork.copying.folder import SnapshotFolder
from shiftwork.duties.runner import run_once
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def block(folder: Path) -> None:
    folder.write_text("in the way")


def unblock(folder: Path) -> None:
    folder.unlink()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.requirement("C-092", "C-130", "C-140")
async def test_one_is_taken_every_sixty_seconds(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with await Queue.open(store_url, clock=clock, profile="coscientist", snapshots=str(folder)) as queue:
        began = clock()
        for _ in range(15):
            await run_once(queue.engine)
            clock.advance(10)
        assert [found.created_at - began for found in await queue.snapshots()] == [120, 60, 0]


@pytest.mark.requirement("C-092")
async def test_the_last_one_holds_what_was_there(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with await Queue.open(store_url, clock=clock, profile="coscientist", snapshots=str(folder)) as queue:
        task = await queue.submit(type="code")
        await pass_time(queue, clock, 60)
        (found,) = await queue.snapshots()
    copy = f"sqlite:///{folder}/copy.db"
    assert (await restore(folder / found.name, copy)).checksum == found.checksum
    async with await Queue.open(copy, clock=clock) as restored:
        assert (await restored.get(task.id)).status == "ready"


@pytest.mark.requirement("C-102")
async def test_one_that_fails_is_told_once_and_the_queue_goes_on(
    store_url: str, clock: MovedClock, folder: Path
) -> None:
    block(folder)
    async with await Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        for _ in range(3):
            await pass_time(queue, clock, 60)
        (alert,) = await queue.alerts(kind="snapshot_failed")
        assert alert.severity == "critical"
        assert alert.message.startswith("Snapshot failed: ")
        await queue.submit(type="code")
        await finish(queue)
        unblock(folder)
        await pass_time(queue, clock, 60)
        assert len(await queue.snapshots()) == 1
        assert await queue.alerts(kind="snapshot_failed", open_only=True) == []


async def test_the_newest_are_kept(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with await Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.set_setting("snapshots.keep", 2)
        await pass_time(queue, clock, 60)
        (folder / "mine.txt").write_text("not theirs")
        for _ in range(3):
            await pass_time(queue, clock, 60)
        kept = await queue.snapshots()
        assert [found.created_at for found in kept] == [clock(), clock() - 60]
        assert names(folder) == [kept[1].name, kept[0].name, "mine.txt"]


async def test_those_asked_for_do_not_push_out_those_taken_by_themselves(
    store_url: str, clock: MovedClock, folder: Path
) -> None:
    async with await Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.set_setting("snapshots.keep", 2)
        await queue.set_setting("maintenance.snapshot_sec", 86_400)
        await pass_time(queue, clock, 60)
        (backup,) = await queue.snapshots()
        for _ in range(4):
            clock.advance(60)
            await queue.take_snapshot()
        left = [found.name for found in await queue.snapshots()]
        assert len(left) == 3, "two that were asked for, and the backup"
        assert left[-1] == backup.name


async def test_a_young_one_is_kept_however_many_there_are(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with await Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.change_settings({"snapshots.keep": 1, "snapshots.keep_sec": 150})
        for _ in range(5):
            await pass_time(queue, clock, 60)
        assert [clock() - found.created_at for found in await queue.snapshots()] == [0, 60, 120]


async def test_without_a_folder_none_is_taken(queue: Queue, clock: MovedClock) -> None:
    assert "snapshot" not in await pass_time(queue, clock, 60)
    assert all(duty["name"] != "snapshot" or duty["runs"] == 0 for duty in await queue.duties())


async def test_the_document_that_wants_them_has_them_beside_the_file(tmp_path: Path, clock: MovedClock) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    async with await Queue.open(url, clock=clock, profile="coscientist") as queue:
        assert (await pass_time(queue, clock, 60))["snapshot"] == {"taken": 1}
        (found,) = await queue.snapshots()
        assert (tmp_path / "queue.db.snapshots" / found.name).exists()


async def test_a_process_without_a_folder_leaves_it_to_one_that_has(
    store_url: str, clock: MovedClock, folder: Path
) -> None:
    async with (
        await Queue.open(store_url, clock=clock) as worker,
        await Queue.open(store_url, clock=clock, snapshots=str(folder)) as server,
    ):
        for _ in range(3):
            await run_once(worker.engine)
            await run_once(server.engine)
            await run_once(worker.engine)
            clock.advance(60)
        assert len(await server.snapshots()) == 3


async def test_of_two_processes_one_takes_it(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with (
        await Queue.open(store_url, clock=clock, snapshots=str(folder)) as one,
        await Queue.open(store_url, clock=clock, snapshots=str(folder)) as other,
    ):
        done = await asyncio.gather(run_once(one.engine), run_once(other.engine))
        assert sum("snapshot" in each for each in done) == 1


async def test_a_request_that_is_sent_again_waits_for_the_first(queue: Queue, folder: Path) -> None:
    kept = SnapshotFolder(folder)
    taken = await asyncio.gather(*(kept.take(queue.url, "20300101T000000.000000Z.snapshot", 1.0) for _ in range(3)))
    assert len(set(map(str, taken))) == 1
    assert [found.name for found in await kept.all()] == [taken[0].name]
