"""Files of a watched folder: news is another content, not another time of writing."""

import os
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError
from shiftwork.server import watching
from shiftwork.server.watching import Watching, check_folder


async def watch(queue: Queue, pattern: str = "inbox/*.md", **more: Any) -> None:
    parameters = {"path": {"from": "path"}, "change": {"from": "change"}}
    task = {"type": "read", "title": "{{ change }} {{ path }}"}
    await queue.save_trigger("in", on={"kind": "file", "pattern": pattern, **more}, task=task, parameters=parameters)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "old.md").write_text("was here before")
    return tmp_path


async def twice(watching: Watching) -> int:
    """A file counts once it stayed as it was from one look to the next."""
    return await watching.look() + await watching.look()


async def titles(queue: Queue) -> list[str]:
    return sorted(str(task.title) for task in (await queue.tasks(type="read")).tasks)


async def test_a_new_file_and_a_changed_one_are_news(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    assert await twice(eyes) == 0
    (folder / "inbox" / "new.md").write_text("hello")
    (folder / "inbox" / "other.txt").write_text("not for us")
    assert await eyes.look() == 0, "somebody may still be writing it"
    assert await eyes.look() == 1
    (folder / "inbox" / "old.md").write_text("changed")
    assert await twice(eyes) == 1
    assert await twice(eyes) == 0
    assert await titles(queue) == ["added inbox/new.md", "changed inbox/old.md"]


async def test_a_file_written_anew_with_the_same_content_is_no_news(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    await twice(eyes)
    (folder / "inbox" / "old.md").write_text("was here before")
    os.utime(folder / "inbox" / "old.md", (5, 5))
    assert await twice(eyes) == 0
    assert await twice(Watching(queue, folder)) == 0, "nor after a restart of the server"


async def test_what_changed_while_no_server_watched_is_news(queue: Queue, folder: Path) -> None:
    await watch(queue, changes=["added", "changed", "removed"])
    await twice(Watching(queue, folder))
    (folder / "inbox" / "new.md").write_text("hello")
    (folder / "inbox" / "old.md").unlink()
    assert await twice(Watching(queue, folder)) == 2
    assert await titles(queue) == ["added inbox/new.md", "removed inbox/old.md"]


async def test_a_content_that_comes_back_is_news_again(queue: Queue, folder: Path) -> None:
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


async def test_links_are_not_followed(queue: Queue, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.md").write_text("secret")
    await watch(queue, "**/*.md")
    eyes = Watching(queue, folder)
    await twice(eyes)
    (folder / "inbox" / "link.md").symlink_to(outside / "secret.md")
    (folder / "elsewhere").symlink_to(outside)
    assert await twice(eyes) == 0


async def test_what_cannot_be_created_is_told_once(queue: Queue, folder: Path) -> None:
    await watch(queue)
    eyes = Watching(queue, folder)
    await twice(eyes)
    await queue.set_setting("allowed_types", ["code"])
    (folder / "inbox" / "new.md").write_text("hello")
    assert await twice(eyes) + await twice(eyes) == 0
    (firing,) = await queue.firings("in")
    assert firing.outcome == "skipped"


async def test_too_many_files_are_not_watched(queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await watch(queue)
    monkeypatch.setattr(watching, "MOST_FILES", 1)
    (folder / "inbox" / "new.md").write_text("hello")
    with pytest.raises(InputError, match="more than 1 files"):
        await Watching(queue, folder).look()


@pytest.mark.parametrize("pattern", ["/etc/*", "../*.md", "a/../../b", "a\\b"])
async def test_a_pattern_stays_in_its_folder(queue: Queue, pattern: str) -> None:
    with pytest.raises(InputError) as refused:
        await watch(queue, pattern)
    assert refused.value.where == "on.pattern"


def test_a_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        check_folder(str(tmp_path / "none"))
