"""Watched folders: a trigger fires on new content, not on a new modification time."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.server import folder_watch
from shiftwork.server.folder_watch import FolderScan, Watching, check_folder
from shiftwork.triggers import watched_files
from shiftwork.triggers.watched_files import ChangedFile


async def watch(queue: Queue, pattern: str = "inbox/*.md", **more: Any) -> None:
    parameters = {"path": {"from": "path"}, "change": {"from": "change"}}
    task = {"type": "read", "title": "{{ change }} {{ path }}"}
    await queue.triggers.save("in", on={"kind": "file", "pattern": pattern, **more}, task=task, parameters=parameters)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    watched = tmp_path / "watched"  # apart from the database, since a test moves it away
    (watched / "inbox").mkdir(parents=True)
    (watched / "inbox" / "old.md").write_text("was here before")
    return watched


async def twice(watching: Watching) -> int:
    """Scan twice: a file counts once it did not change between two scans."""
    return await watching.scan() + await watching.scan()


async def titles(queue: Queue) -> list[str]:
    return sorted(str(task.title) for task in (await queue.tasks.list(type="read")).tasks)


async def test_new_and_changed_files_fire_the_trigger(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    assert await twice(eyes) == 0
    (folder / "inbox" / "new.md").write_text("hello")
    (folder / "inbox" / "other.txt").write_text("not for us")
    assert await eyes.scan() == 0, "somebody may still be writing it"
    assert await eyes.scan() == 1
    (folder / "inbox" / "old.md").write_text("changed")
    assert await twice(eyes) == 1
    assert await twice(eyes) == 0
    assert await titles(queue) == ["added inbox/new.md", "changed inbox/old.md"]


async def test_file_rewritten_with_same_content_does_not_fire(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    await twice(eyes)
    (folder / "inbox" / "old.md").write_text("was here before")
    os.utime(folder / "inbox" / "old.md", (5, 5))
    assert await twice(eyes) == 0
    assert await twice(Watching(queue, folder)) == 0, "nor after a restart of the server"


async def test_file_arriving_before_the_first_scan_fires(store_url: str, folder: Path) -> None:
    async with Queue.open(store_url) as queue:  # by a clock that runs, as files are stamped by one
        await watch(queue)
        saved = time.time()
        early = folder / "inbox" / "early.md"
        while not early.exists() or early.stat().st_ctime <= saved:  # stamps move on every few milliseconds
            early.write_text("hello")
        eyes = Watching(queue, folder)
        assert await twice(eyes) == 1
        assert await twice(eyes) == 0
        assert await titles(queue) == ["added inbox/early.md"]


async def test_changes_made_while_no_server_watched_fire(queue: Queue, folder: Path) -> None:
    await watch(queue, changes=["added", "changed", "removed"])
    await twice(Watching(queue, folder))
    (folder / "inbox" / "new.md").write_text("hello")
    (folder / "inbox" / "old.md").unlink()
    assert await twice(Watching(queue, folder)) == 2
    assert await titles(queue) == ["added inbox/new.md", "removed inbox/old.md"]


async def test_content_that_returns_fires_again(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    await twice(eyes)
    for text in ("b", "was here before", "b"):
        (folder / "inbox" / "old.md").write_text(text)
        assert await twice(eyes) == 1
    (folder / "inbox" / "old.md").unlink()
    assert await twice(eyes) == 0
    (folder / "inbox" / "old.md").write_text("b")
    assert await twice(eyes) == 1


async def test_changes_made_during_a_pause_do_not_fire(queue: Queue, folder: Path) -> None:
    await watch(queue, changes=["added", "changed", "removed"])
    (folder / "inbox" / "gone.md").write_text("soon gone")
    eyes = Watching(queue, folder)
    await twice(eyes)
    await queue.triggers.pause("in")
    (folder / "inbox" / "new.md").write_text("hello")
    (folder / "inbox" / "old.md").write_text("changed")
    (folder / "inbox" / "gone.md").unlink()
    await twice(eyes)
    await queue.triggers.resume("in")
    assert await twice(eyes) == 0
    (folder / "inbox" / "new.md").write_text("changed after the pause")
    assert await twice(eyes) == 1
    assert await titles(queue) == ["changed inbox/new.md"]


async def test_change_seen_before_resume_does_not_fire_after_it(queue: Queue, folder: Path) -> None:
    await watch(queue)
    await twice(Watching(queue, folder))
    (watcher,) = await queue.engine.store.read(watched_files.watchers)
    await queue.triggers.pause("in")
    await queue.triggers.resume("in")
    seen = ChangedFile("inbox/new.md", "added", "0" * 64, 5)
    fire = watched_files.fire_for
    assert await queue.engine.store.run(lambda tx: fire(tx, queue.engine, watcher.trigger, seen)) is None
    assert await queue.triggers.firings("in") == []


async def test_unreadable_file_does_not_block_other_files(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locked = True
    really = folder_watch._sha256

    def read(path: Path) -> str:
        """Make a file unreadable, even for root, who ignores file modes."""
        if locked and path.name.startswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(folder_watch, "_sha256", read)
    await watch(queue)
    (folder / "inbox" / "locked-before.md").write_text("there at the first look")
    eyes = Watching(queue, folder)
    await twice(eyes)
    (folder / "inbox" / "locked.md").write_text("secret")
    (folder / "inbox" / "new.md").write_text("hello")
    with caplog.at_level(logging.WARNING):
        assert await twice(eyes) + await twice(eyes) == 1
    assert await titles(queue) == ["added inbox/new.md"]
    assert [each for each in caplog.messages if "locked.md" in each] == [caplog.messages[-1]], "told once"
    locked = False
    await twice(eyes)
    assert await titles(queue) == ["added inbox/locked-before.md", "added inbox/locked.md", "added inbox/new.md"]


async def test_unavailable_folder_reports_no_removed_files(queue: Queue, folder: Path) -> None:
    await watch(queue, changes=["added", "changed", "removed"])
    eyes = Watching(queue, folder)
    await twice(eyes)
    away = folder.with_name("away")
    await asyncio.to_thread(folder.rename, away)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            await eyes.scan()
    await asyncio.to_thread(away.rename, folder)
    assert await twice(eyes) == 0
    (folder / "inbox" / "old.md").unlink()
    assert await twice(eyes) == 1
    assert await titles(queue) == ["removed inbox/old.md"]


async def test_unmounted_disk_reports_no_removed_files(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder on another disk is left."""
    await watch(queue, changes=["added", "changed", "removed"])
    eyes = Watching(queue, folder)
    await twice(eyes)
    with monkeypatch.context() as unmounted:
        unmounted.setattr(folder_watch, "_scan_folder", lambda _: FolderScan({}, frozenset(), -1))
        for _ in range(3):
            with pytest.raises(OSError, match="unmounted"):
                await eyes.scan()
    assert await twice(eyes) == 0
    assert await queue.triggers.firings("in") == []


async def test_unreadable_subfolder_does_not_block_others(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch(queue, "**/*.md", changes=["added", "changed", "removed"])
    (folder / "locked").mkdir()
    (folder / "locked" / "kept.md").write_text("kept")
    eyes = Watching(queue, folder)
    await twice(eyes)
    really = os.scandir

    def look_into(place: str) -> Any:
        if Path(place).name == "locked":
            raise PermissionError(13, "Permission denied", place)
        return really(place)

    with monkeypatch.context() as locked:
        locked.setattr(os, "scandir", look_into)
        (folder / "inbox" / "new.md").write_text("hello")
        assert await twice(eyes) + await twice(eyes) == 1
    assert await twice(eyes) == 0
    assert await titles(queue) == ["added inbox/new.md"]


async def test_symbolic_links_are_not_followed(
    queue: Queue, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.md").write_text("secret")
    await watch(queue, "**/*.md")
    eyes = Watching(queue, folder)
    await twice(eyes)
    (folder / "inbox" / "link.md").symlink_to(outside / "secret.md")
    (folder / "elsewhere").symlink_to(outside)
    assert await twice(eyes) == 0


async def test_firing_that_cannot_create_a_task_is_skipped_once(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    await twice(eyes)
    await queue.settings.set("allowed_types", ["code"])
    (folder / "inbox" / "new.md").write_text("hello")
    assert await twice(eyes) + await twice(eyes) == 0
    (firing,) = await queue.triggers.firings("in")
    assert firing.outcome == "skipped"


async def test_folder_with_too_many_files_is_refused(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watch(queue)
    monkeypatch.setattr(folder_watch, "MAX_FILES", 1)
    (folder / "inbox" / "new.md").write_text("hello")
    with pytest.raises(InputError, match="more than 1 files"):
        await Watching(queue, folder).scan()


@pytest.mark.parametrize("pattern", ["/etc/*", "../*.md", "a/../../b", "a\\b"])
async def test_pattern_outside_its_folder_is_refused(queue: Queue, pattern: str) -> None:
    with pytest.raises(InputError) as refused:
        await watch(queue, pattern)
    assert refused.value.where == "on.pattern"


def test_missing_watch_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        check_folder(str(tmp_path / "none"))
