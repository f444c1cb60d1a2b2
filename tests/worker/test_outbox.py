"""The outbox: one folder for a store, whole files, nothing thrown away that cannot be read."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.duties.presence import process_of, this_process
from shiftwork.worker import Context, Worker, sending
from shiftwork.worker.delivery import Delivery, Summary
from shiftwork.worker.outbox import Kept, Outbox, default_folder, open_outbox
from tests.races.fleet import handles
from tests.stores.stalling import stalled
from tests.worker.steps import PATIENCE_SEC, at_work, until, until_status

RESULT = Kept("task_1.1", done=True, data={"n": 1}, usage={"cost_usd": 0.5})
WRITTEN = msgspec.structs.replace(RESULT, by=this_process())


def test_what_is_kept_is_found_by_the_next_one_until_it_is_dropped(tmp_path: Path) -> None:
    assert Outbox(tmp_path / "box").keep(RESULT)
    later = Outbox(tmp_path / "box")
    assert list(later.left()) == [WRITTEN]
    later.drop(RESULT.token)
    assert list((tmp_path / "box").iterdir()) == []


def test_what_the_living_keep_is_theirs_to_hand_in(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        file = tmp_path / "task_2.1.json"
        left = Kept("task_2.1", done=True, by=process_of(other.pid))
        file.write_bytes(msgspec.json.encode(left))
        outbox = Outbox(tmp_path)
        assert outbox.keep(RESULT)
        assert list(outbox.of_the_dead()) == []
        other.kill()
        other.wait(PATIENCE_SEC)
        assert list(outbox.of_the_dead()) == [left]
    outbox.drop(left.token)
    assert list(outbox.of_the_dead()) == []


def test_a_file_that_cannot_be_read_is_left_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.json").write_text("{")
    assert list(Outbox(tmp_path).left()) == []
    assert (tmp_path / "broken.json").exists()
    assert "broken.json in the outbox cannot be read" in caplog.text


def test_what_cannot_be_written_is_said_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert not Outbox(tmp_path / "file").keep(RESULT)
    assert not Outbox(tmp_path / "box").keep(Kept("task_1.1", done=True, data=object()))
    assert not Outbox(tmp_path / "box").keep(Kept("task_1.1", done=True, text=5))  # type: ignore[arg-type]  # a handler's
    assert caplog.text.count("cannot be kept in the outbox") == 3
    assert not (tmp_path / "box").exists()
    assert not Outbox(None).keep(RESULT)


def test_each_store_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder("sqlite:///work.db") == Path("work.db.outbox")
    assert default_folder("sqlite:////data/work.db") == Path("/data/work.db.outbox")
    assert default_folder("sqlite://:memory:") is None
    one, same, other = (
        default_folder(f"postgresql://{who}@host/{database}")
        for who, database in (("me", "a"), ("me:secret", "a"), ("me", "b"))
    )
    assert one == same
    assert one != other
    assert str(one).startswith("/state/shiftwork/outbox/")


def test_each_workspace_has_its_own(tmp_path: Path) -> None:
    """Who works in one workspace is told that a task of another does not exist, and would throw its result away."""
    store = f"sqlite:///{tmp_path}/work.db"
    assert open_outbox(None, store, "a/b").keep(RESULT)
    assert list(open_outbox(None, store, "default").left()) == []
    assert list(open_outbox(None, store, "a/b").left()) == [WRITTEN]
    assert open_outbox(tmp_path / "own", store, "default").keep(RESULT)
    assert [file.name for file in (tmp_path / "own").iterdir()] == ["task_1.1.json"]


def test_a_server_has_one_however_its_address_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder("http://host:8080") == default_folder("http://host:8080/")
    assert default_folder("http://host:8080") != default_folder("http://host:8081")


KEEP = """
import pathlib, sys
from shiftwork.worker.outbox import Kept, Outbox
Outbox(pathlib.Path(sys.argv[1])).keep(Kept(sys.argv[2], done=True, data=1, usage={"cost_usd": 1.0}))
"""


async def test_what_a_dead_process_left_is_booked_once_however_many_find_it(
    shop: Queue, store_url: str, tmp_path: Path
) -> None:
    """Its claim was taken back: whoever hands it in is told so, and what it cost is booked all the same."""
    await shop.submit(type="code")
    (held,) = await shop.claim("worker", start=True, runtime_id="dead")
    subprocess.run([sys.executable, "-c", KEEP, str(tmp_path / "box"), held.token], check=True)  # noqa: ASYNC221  # it is short
    await shop.runtime_gone("dead")
    async with handles(store_url, 4) as others:
        deliveries = [Delivery(each, Outbox(tmp_path / "box"), Summary(), asyncio.Event()) for each in others]
        await asyncio.gather(*(each.left(of_the_dead=True) for each in deliveries))
        await asyncio.gather(*(each.left() for each in deliveries))
    assert list((tmp_path / "box").iterdir()) == []
    (spent,) = (await shop.costs("agent")).costs
    assert (spent.value, spent.cost_usd) == ("worker", 1.0)


async def test_a_slow_disk_holds_up_nothing_but_itself(
    shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes while the result is being written down: then it need not be kept, and is not."""
    writing, go_on, written = threading.Event(), threading.Event(), threading.Event()
    write = Outbox._write

    def write_slowly(self: Outbox, target: Path, text: bytes) -> None:
        writing.set()
        go_on.wait(PATIENCE_SEC / 4)
        write(self, target, text)
        written.set()

    monkeypatch.setattr(Outbox, "_write", write_slowly)
    monkeypatch.setattr(sending, "KEEP_AFTER_SEC", 0.05)
    done = asyncio.Event()
    worker = Worker("worker")

    @worker.handler("code")
    async def work(ctx: Context) -> int:
        await done.wait()
        return 1

    task = await shop.submit(type="code")
    async with at_work(worker, store_url):
        await until_status(shop, task.id, "running")
        async with stalled(shop, task.id):
            done.set()
            await until(writing.is_set)
            assert not written.is_set(), "the loop stood still until it was written"
        await until_status(shop, task.id, "completed")
        go_on.set()
        await until(written.is_set)
        outbox = open_outbox(None, store_url, "default").folder
        assert outbox is not None
        await until(lambda: list(outbox.iterdir()) == [])
