"""The blocking client: the same verbs from any thread, on one loop of its own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shiftwork import SyncClient
from shiftwork.client import sync as module
from shiftwork.core.errors import NotFound, StoreClosed, StoreUnavailable


@pytest.fixture
def sync(server_url: str) -> Iterator[SyncClient]:
    with SyncClient.open(server_url) as opened:
        yield opened


def test_a_task_is_submitted_worked_and_read(sync: SyncClient) -> None:
    made = sync.submit(type="code", payload={"n": 1})
    (taken,) = sync.claim("ada", start=True)
    assert (taken.id, taken.payload) == (made.id, {"n": 1})
    assert sync.complete(taken.token, {"m": 2}).status == "completed"
    assert sync.result(made.id).data == {"m": 2}
    with pytest.raises(NotFound):
        sync.get("nothing")


def test_many_threads_share_it(sync: SyncClient) -> None:
    def produce(number: int) -> list[str]:
        mine = sync.as_caller(f"thread:{number}")
        return [mine.submit(type="code", tags=[f"t{number}"]).id for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        made = [task_id for batch in threads.map(produce, range(8)) for task_id in batch]
    assert sorted(task.id for task in sync.tasks(limit=1000).tasks) == sorted(made)
    assert {event.actor for task_id in made for event in sync.history(task_id)} == {f"thread:{n}" for n in range(8)}


def test_events_are_followed_until_the_reader_has_enough(sync: SyncClient) -> None:
    made = sync.submit_many([{"type": "code"}] * 2)
    seen = []
    for event in sync.follow():
        seen.append(event.task_id)
        if len(seen) == 2:
            break
    assert seen == [task.id for task in made]


def test_workspaces_and_the_server_are_named(sync: SyncClient, server_url: str) -> None:
    lab = sync.in_workspace("lab")
    made = lab.submit(type="code")
    assert (lab.workspace, lab.get(made.id).workspace_id, lab.url) == ("lab", "lab", server_url)
    assert repr(lab) == f"SyncClient({server_url!r}, workspace='lab')"
    assert abs(lab.now() - made_at(lab, made.id)) < 60


def made_at(client: SyncClient, task_id: str) -> float:
    return client.get(task_id).created_at


def test_whoever_waits_when_it_is_closed_is_told(server_url: str) -> None:
    client = SyncClient.open(server_url)
    client.register_agent(id="patient")
    begun = threading.Event()
    told: list[Exception] = []

    def wait() -> None:
        begun.set()
        try:
            client.claim("patient", wait=20)
        except StoreClosed as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    client.close()
    waiting.join()
    assert len(told) == 1
    with pytest.raises(StoreClosed):
        client.status()
    client.close()
    assert "shiftwork-client" not in [thread.name for thread in threading.enumerate()]


def test_a_call_that_comes_while_it_is_closed_is_told_so(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the loop was stopped nobody would run it, though the loop is not closed yet."""
    client = SyncClient.open(server_url)
    join = threading.Thread.join
    told: list[object] = []

    def call() -> None:
        try:
            client.status()
        except StoreClosed as error:
            told.append(error)

    def join_late(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        monkeypatch.undo()
        late.start()
        join(late, 5)

    late = threading.Thread(target=call, daemon=True)
    monkeypatch.setattr(threading.Thread, "join", join_late)
    client.close()
    assert len(told) == 1


def test_whoever_waits_for_what_does_not_heed_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SEC", 0.2)
    loop = module._Loop()
    begun, enough = threading.Event(), threading.Event()

    async def heedless() -> None:
        begun.set()
        enough.wait()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(loop.wait, heedless())
        begun.wait()
        loop.end()
        with pytest.raises(StoreClosed):
            waiting.result(20)
        enough.set()
    loop._thread.join()
    loop._loop.close()


def test_what_cannot_be_opened_leaves_no_thread(unused_tcp_port: int) -> None:
    with pytest.raises(StoreUnavailable):
        SyncClient.open(f"http://127.0.0.1:{unused_tcp_port}", patience_sec=0)
    assert "shiftwork-client" not in [thread.name for thread in threading.enumerate()]


def test_content_goes_in_and_comes_out(sync: SyncClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    file = tmp_path / "report.bin"
    file.write_bytes(content)
    kept = sync.put_artifact(file)
    assert sync.artifact(kept.id) == kept
    assert b"".join(sync.get_artifact(kept.id)) == content
    assert b"".join(sync.get_artifact(kept.id, start=5, end=1_048_580)) == content[5:1_048_580]
    made = sync.submit(type="code", spec={"context_refs": [kept.id]})
    assert [each.id for each in sync.inputs(made.id)] == [kept.id]
    assert [each.role for each in sync.artifacts(made.id)] == ["input"]
