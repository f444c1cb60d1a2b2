"""Snapshots are taken periodically; a failure raises an alert, and the queue continues."""

import asyncio
from pathlib import Path

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.snapshots.copy import restore
from shiftwork.snapshots.snapshot_folder import SnapshotFolder
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
async def test_snapshot_is_taken_every_sixty_seconds(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with Queue.open(store_url, clock=clock, profile="coscientist", snapshots=str(folder)) as queue:
        began = clock()
        for _ in range(15):
            await run_once(queue.engine)
            clock.advance(10)
        assert [found.created_at - began for found in await queue.snapshots.list()] == [120, 60, 0]


@pytest.mark.requirement("C-092")
async def test_last_snapshot_contains_the_queue(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with Queue.open(store_url, clock=clock, profile="coscientist", snapshots=str(folder)) as queue:
        task = await queue.submit(type="code")
        await pass_time(queue, clock, 60)
        (found,) = await queue.snapshots.list()
    copy = f"sqlite:///{folder}/copy.db"
    assert (await restore(folder / found.name, copy)).checksum == found.checksum
    async with Queue.open(copy, clock=clock) as restored:
        assert (await restored.get(task.id)).status == "ready"


@pytest.mark.requirement("C-102")
async def test_failed_snapshot_raises_one_alert_and_queue_continues(
    store_url: str, clock: MovedClock, folder: Path
) -> None:
    block(folder)
    async with Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        for _ in range(3):
            await pass_time(queue, clock, 60)
        (alert,) = await queue.alerts.list(kind="snapshot_failed")
        assert alert.severity == "critical"
        assert alert.message.startswith("Snapshot failed: ")
        await queue.submit(type="code")
        await finish(queue)
        unblock(folder)
        await pass_time(queue, clock, 60)
        assert len(await queue.snapshots.list()) == 1
        assert await queue.alerts.list(kind="snapshot_failed", open_only=True) == []


async def test_only_the_newest_snapshots_are_kept(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.settings.set("snapshots.keep", 2)
        await pass_time(queue, clock, 60)
        (folder / "mine.txt").write_text("not theirs")
        for _ in range(3):
            await pass_time(queue, clock, 60)
        kept = await queue.snapshots.list()
        assert [found.created_at for found in kept] == [clock(), clock() - 60]
        assert names(folder) == [kept[1].name, kept[0].name, "mine.txt"]


async def test_requested_snapshots_do_not_replace_automatic_ones(
    store_url: str, clock: MovedClock, folder: Path
) -> None:
    async with Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.settings.set("snapshots.keep", 2)
        await queue.settings.set("maintenance.snapshot_sec", 86_400)
        await pass_time(queue, clock, 60)
        (backup,) = await queue.snapshots.list()
        for _ in range(4):
            clock.advance(60)
            await queue.snapshots.take()
        left = [found.name for found in await queue.snapshots.list()]
        assert len(left) == 3, "two that were asked for, and the backup"
        assert left[-1] == backup.name


async def test_young_snapshots_are_kept_beyond_the_count(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with Queue.open(store_url, clock=clock, snapshots=str(folder)) as queue:
        await queue.settings.change({"snapshots.keep": 1, "snapshots.keep_sec": 150})
        for _ in range(5):
            await pass_time(queue, clock, 60)
        assert [clock() - found.created_at for found in await queue.snapshots.list()] == [0, 60, 120]


async def test_without_a_folder_no_snapshot_is_taken(queue: Queue, clock: MovedClock) -> None:
    assert "snapshot" not in await pass_time(queue, clock, 60)
    assert all(job.name != "snapshot" or job.runs == 0 for job in await queue.control.maintenance())


async def test_coscientist_profile_takes_snapshots_next_to_the_file(tmp_path: Path, clock: MovedClock) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    async with Queue.open(url, clock=clock, profile="coscientist") as queue:
        assert (await pass_time(queue, clock, 60))["snapshot"] == {"taken": 1}
        (found,) = await queue.snapshots.list()
        assert (tmp_path / "queue.db.snapshots" / found.name).exists()


async def test_process_without_a_folder_leaves_snapshots_to_another(
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
        assert len(await server.snapshots.list()) == 3


async def test_only_one_of_two_processes_takes_the_snapshot(store_url: str, clock: MovedClock, folder: Path) -> None:
    async with (
        await Queue.open(store_url, clock=clock, snapshots=str(folder)) as one,
        await Queue.open(store_url, clock=clock, snapshots=str(folder)) as other,
    ):
        done = await asyncio.gather(run_once(one.engine), run_once(other.engine))
        assert sum("snapshot" in each for each in done) == 1


async def test_repeated_snapshot_request_waits_for_the_first(queue: Queue, folder: Path) -> None:
    kept = SnapshotFolder(folder)
    taken = await asyncio.gather(*(kept.take(queue.url, "20300101T000000.000000Z.snapshot", 1.0) for _ in range(3)))
    assert len(set(map(str, taken))) == 1
    assert [found.name for found in await kept.all()] == [taken[0].name]
