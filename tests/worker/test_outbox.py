"""The outbox: one folder per store, whole files, and unreadable files are kept."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.agents.known_process import process_of, this_process
from shiftwork.model.reports import TaskResult
from shiftwork.model.task import Usage
from shiftwork.worker import Context, Worker, result_sender
from shiftwork.worker.delivery import ResultDelivery, Summary
from shiftwork.worker.outbox import Outbox, StoredResult, default_folder, open_outbox
from tests.races.fleet import handles
from tests.stores.stalling import stalled
from tests.worker.steps import PATIENCE_SEC, at_work, until, until_status

RESULT = StoredResult("task_1.1", TaskResult({"n": 1}, usage=Usage(cost_usd=0.5)))
WRITTEN = msgspec.structs.replace(RESULT, by=this_process())


def test_kept_result_is_found_until_it_is_dropped(tmp_path: Path) -> None:
    assert Outbox(tmp_path / "box").keep(RESULT)
    later = Outbox(tmp_path / "box")
    assert list(later.left()) == [WRITTEN]
    later.drop(RESULT.token)
    assert list((tmp_path / "box").iterdir()) == []


def test_results_of_live_processes_are_left_to_them(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        file = tmp_path / "task_2.1.json"
        left = StoredResult("task_2.1", TaskResult(), by=process_of(other.pid))
        file.write_bytes(msgspec.json.encode(left))
        outbox = Outbox(tmp_path)
        assert outbox.keep(RESULT)
        assert list(outbox.of_dead_workers()) == []
        other.kill()
        other.wait(PATIENCE_SEC)
        assert list(outbox.of_dead_workers()) == [left]
    outbox.drop(left.token)
    assert list(outbox.of_dead_workers()) == []


def test_unreadable_outbox_file_is_kept_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.json").write_text("{")
    assert list(Outbox(tmp_path).left()) == []
    assert (tmp_path / "broken.json").exists()
    assert "broken.json in the outbox cannot be read" in caplog.text


def test_unwritable_result_is_logged_without_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert not Outbox(tmp_path / "file").keep(RESULT)
    assert not Outbox(tmp_path / "box").keep(StoredResult("task_1.1", TaskResult(object())))
    assert not Outbox(tmp_path / "box").keep(StoredResult("task_1.1", TaskResult(text=5)))  # type: ignore[arg-type]  # a handler's
    assert caplog.text.count("cannot be kept in the outbox") == 3
    assert not (tmp_path / "box").exists()
    assert not Outbox(None).keep(RESULT)


def test_each_store_has_its_own_outbox_folder(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_each_workspace_has_its_own_outbox_folder(tmp_path: Path) -> None:
    """A worker of one workspace cannot see tasks of another, and would discard their results."""
    store = f"sqlite:///{tmp_path}/work.db"
    assert open_outbox(None, store, "a/b").keep(RESULT)
    assert list(open_outbox(None, store, "default").left()) == []
    assert list(open_outbox(None, store, "a/b").left()) == [WRITTEN]
    assert open_outbox(tmp_path / "own", store, "default").keep(RESULT)
    assert [file.name for file in (tmp_path / "own").iterdir()] == ["task_1.1.json"]


def test_server_has_one_outbox_for_every_form_of_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder("http://host:8080") == default_folder("http://host:8080/")
    assert default_folder("http://host:8080") != default_folder("http://host:8081")


KEEP = """
import pathlib, sys
from shiftwork.model.reports import TaskResult
from shiftwork.model.task import Usage
from shiftwork.worker.outbox import StoredResult, Outbox
Outbox(pathlib.Path(sys.argv[1])).keep(StoredResult(sys.argv[2], TaskResult(1, usage=Usage(cost_usd=1.0))))
"""


async def test_result_of_a_dead_process_is_charged_once(shop: Queue, store_url: str, tmp_path: Path) -> None:
    """Its claim was reclaimed: the submitter of the result gets an error, but its cost is booked."""
    await shop.submit(type="code")
    (held,) = await shop.claim("worker", start=True, runtime_id="dead")
    subprocess.run([sys.executable, "-c", KEEP, str(tmp_path / "box"), held.token], check=True)  # noqa: ASYNC221  # it is short
    await shop.runtimes.report_gone("dead")
    async with handles(store_url, 4) as others:
        deliveries = [ResultDelivery(each, Outbox(tmp_path / "box"), Summary(), asyncio.Event()) for each in others]
        await asyncio.gather(*(each.left(of_dead_workers=True) for each in deliveries))
        await asyncio.gather(*(each.left() for each in deliveries))
    assert list((tmp_path / "box").iterdir()) == []
    (spent,) = (await shop.budgets.costs("agent")).costs
    assert (spent.value, spent.cost_usd) == ("worker", 1.0)


async def test_slow_disk_delays_only_the_outbox(shop: Queue, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the answer arrives while the result is being written, the file is not kept."""
    writing, released, written = threading.Event(), threading.Event(), threading.Event()
    write = Outbox._write

    def write_slowly(self: Outbox, target: Path, text: bytes) -> None:
        writing.set()
        released.wait(PATIENCE_SEC / 4)
        write(self, target, text)
        written.set()

    monkeypatch.setattr(Outbox, "_write", write_slowly)
    monkeypatch.setattr(result_sender, "KEEP_AFTER_SEC", 0.05)
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
        released.set()
        await until(written.is_set)
        outbox = open_outbox(None, store_url, "default").folder
        assert outbox is not None
        await until(lambda: list(outbox.iterdir()) == [])
