"""The blocking queue, on a database and over HTTP: the same operations from any thread, on one loop of its own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shiftwork import SyncQueue
from shiftwork.client import blocking as module
from shiftwork.model.errors import NotFound, ResultTimeout, StoreClosed, StoreUnavailable, TaskCancelled
from tests.client.serving import served
from tools import blocking_stub


@pytest.fixture(params=["database", "server"])
def url(request: pytest.FixtureRequest, store_url: str) -> Iterator[str]:
    """A queue on each store, opened there or behind a server."""
    if request.param == "database":
        yield store_url
    else:
        with served(store_url) as server:
            yield server.url


@pytest.fixture
def sync(url: str) -> Iterator[SyncQueue]:
    with SyncQueue.open(url) as opened:
        yield opened


def test_types_of_the_blocking_queue_follow_the_declarations() -> None:
    assert blocking_stub.STUB.read_text(encoding="utf-8") == blocking_stub.blocking_stub()


def test_task_is_submitted_completed_and_read(sync: SyncQueue) -> None:
    made = sync.submit(type="code", payload={"n": 1})
    (taken,) = sync.claim("ada", start=True)
    assert (taken.id, taken.payload) == (made.id, {"n": 1})
    assert sync.complete(taken.token, {"m": 2}).status == "completed"
    assert sync.result(made.id).data == {"m": 2}
    with pytest.raises(NotFound):
        sync.get("nothing")


def test_handle_blocks_until_its_task_ends(sync: SyncQueue) -> None:
    handle = sync.submit(type="code")
    with pytest.raises(ResultTimeout, match="it is ready"):
        handle.result(timeout=0.01)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(handle.result, 30)
        (taken,) = sync.claim("ada", start=True)
        sync.complete(taken.token, {"m": 2})
        assert waiting.result(30) == {"m": 2}
    assert sync.result(handle).data == {"m": 2}
    assert (handle.get().status, handle.explain().status) == ("completed", "completed")


def test_handles_of_a_batch_and_a_dag_block(sync: SyncQueue) -> None:
    (lone,) = sync.submit_many([{"type": "code"}])
    assert lone.cancel("enough").status == "cancelled"
    with pytest.raises(TaskCancelled, match="enough"):
        lone.result()
    dag = sync.submit_dag({"tasks": [{"type": "code", "key": "a"}, {"type": "code", "key": "b"}]})
    for agent in ("ada", "bob"):
        (taken,) = sync.claim(agent, start=True)
        sync.complete(taken.token, taken.id)
    assert [task.result(timeout=30) for task in dag] == [task.id for task in dag]
    assert dag.dag_id == dag[0].dag_id


def test_many_threads_share_one_client(sync: SyncQueue) -> None:
    def produce(number: int) -> list[str]:
        mine = sync.as_caller(f"thread:{number}")
        return [mine.submit(type="code", tags=[f"t{number}"]).id for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        made = [task_id for batch in threads.map(produce, range(8)) for task_id in batch]
    assert sorted(task.id for task in sync.tasks.list(limit=1000).tasks) == sorted(made)
    events = [event for task_id in made for event in sync.tasks.history(task_id).events]
    assert {event.actor for event in events} == {f"thread:{n}" for n in range(8)}


def test_events_are_followed_until_the_reader_stops(sync: SyncQueue) -> None:
    made = sync.submit_many([{"type": "code"}] * 2)
    seen = []
    for event in sync.follow():
        seen.append(event.task_id)
        if len(seen) == 2:
            break
    assert seen == [task.id for task in made]


def test_client_names_its_workspace_and_server(sync: SyncQueue, url: str) -> None:
    lab = sync.in_workspace("lab")
    made = lab.submit(type="code")
    assert (lab.workspace, lab.get(made.id).workspace_id, lab.url) == ("lab", "lab", url)
    assert repr(lab) == f"SyncQueue({url!r}, workspace='lab')"
    assert abs(lab.now() - made_at(lab, made.id)) < 60


def made_at(client: SyncQueue, task_id: str) -> float:
    return client.get(task_id).created_at


def test_waiting_call_is_ended_when_the_client_is_closed(server_url: str) -> None:
    client = SyncQueue.open(server_url)
    client.agents.register(id="patient")
    begun = threading.Event()
    found: list[Exception] = []

    def wait() -> None:
        begun.set()
        try:
            client.claim("patient", wait=20)
        except StoreClosed as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    client.close()
    waiting.join()
    assert len(found) == 1
    with pytest.raises(StoreClosed):
        client.status()
    client.close()
    assert "shiftwork-queue" not in [thread.name for thread in threading.enumerate()]


def test_call_made_while_closing_is_refused(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has stopped but is not closed, so the call would never run."""
    client = SyncQueue.open(server_url)
    join = threading.Thread.join
    output: list[object] = []

    def call() -> None:
        try:
            client.status()
        except StoreClosed as error:
            output.append(error)

    def join_late(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        monkeypatch.undo()
        late.start()
        join(late, 5)

    late = threading.Thread(target=call, daemon=True)
    monkeypatch.setattr(threading.Thread, "join", join_late)
    client.close()
    assert len(output) == 1


def test_waiting_call_of_an_uncancellable_coroutine_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SEC", 0.2)
    loop = module._Loop()  # type: ignore[attr-defined]  # the stub has the public names alone
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


def test_failed_open_leaves_no_thread(unused_tcp_port: int) -> None:
    with pytest.raises(StoreUnavailable):
        SyncQueue.open(f"http://127.0.0.1:{unused_tcp_port}", patience_sec=0)
    assert "shiftwork-queue" not in [thread.name for thread in threading.enumerate()]


def test_artifact_content_survives_a_round_trip(sync: SyncQueue, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    file = tmp_path / "report.bin"
    file.write_bytes(content)
    kept = sync.artifacts.put(file)
    assert sync.artifacts.info(kept.id) == kept
    assert b"".join(sync.artifacts.get(kept.id)) == content
    assert b"".join(sync.artifacts.get(kept.id, start=5, end=1_048_580)) == content[5:1_048_580]
    made = sync.submit(type="code", spec={"context_refs": [kept.id]})
    assert [each.id for each in sync.artifacts.inputs(made.id)] == [kept.id]
    assert [each.role for each in sync.artifacts.list(made.id)] == ["input"]
