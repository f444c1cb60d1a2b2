"""The SQLite writer: an error in one verb affects only its caller, and every answer is true."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import apsw
import pytest

from shiftwork import Queue
from shiftwork.model.errors import ShiftworkError, StoreUnavailable
from shiftwork.store.sqlite import SqliteStore
from shiftwork.store.store import Tx
from tests.stores.stalling import given


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(f"{tmp_path}/queue.db")
    yield opened
    await opened.close()


def writes(name: str, size: int = 1) -> Any:
    """A verb that adds a workspace of this name, whose row takes `size` bytes."""

    async def verb(tx: Tx) -> str:
        await tx.run("add_workspace", name=name, profile="x" * size, now=tx.now)
        return name

    return verb


async def written(store: SqliteStore) -> set[str]:
    return {row["name"] for row in await store.read(lambda tx: tx.all("list_workspaces"))}


async def in_one_group(store: SqliteStore, *verbs: Any) -> list[Any]:
    """Run verbs in one commit: they come while another keeps the writer busy."""
    all_have_come = threading.Event()

    async def keep_busy(tx: Tx) -> None:
        all_have_come.wait()

    first = asyncio.create_task(store.run(keep_busy))
    calls = [asyncio.create_task(store.run(verb)) for verb in verbs]
    await asyncio.sleep(0)
    all_have_come.set()
    await first
    return await answers(*calls)


async def answers(*calls: Awaitable[Any]) -> list[Any]:
    """Return each answer, or the code of its error."""
    found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    return [answer.code if isinstance(answer, ShiftworkError) else answer for answer in found]


async def test_full_disk_in_a_group_fails_only_one_verb(store: SqliteStore) -> None:
    """The engine ends the whole transaction; each verb is repeated alone and answered from that."""
    pages = store._connection.pragma("page_count")
    store._connection.pragma("max_page_count", pages + 4)
    group = writes("a"), writes("b"), writes("huge", 1 << 20), writes("c")
    assert await in_one_group(store, *group) == ["a", "b", "store_full", "c"]
    assert await written(store) == {"a", "b", "c"}
    store._connection.pragma("max_page_count", pages + 10_000)
    assert await store.run(writes("huge", 1 << 20)) == "huge"


async def test_transaction_lost_without_an_error_is_repeated(store: SqliteStore) -> None:
    """No verb has seen an error, but what they wrote is gone: all are run again before anyone is answered."""
    calls = 0

    async def ends_the_transaction(tx: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            tx._connection.execute("rollback")
        return "done"

    assert await in_one_group(store, writes("a"), ends_the_transaction, writes("b")) == ["a", "done", "b"]
    assert await written(store) == {"a", "b"}


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, MemoryError])
async def test_exception_of_a_verb_does_not_end_the_writer(store: SqliteStore, end: type[BaseException]) -> None:
    async def verb(tx: Tx) -> None:
        await tx.run("add_workspace", name="gone", profile="", now=tx.now)
        raise end

    with pytest.raises(end):
        await store.run(verb)
    assert await in_one_group(store, writes("a"), writes("b")) == ["a", "b"]
    assert await written(store) == {"a", "b"}


async def test_exception_in_a_group_rolls_back_only_its_verb(store: SqliteStore) -> None:
    async def verb(tx: Tx) -> None:
        await tx.run("add_workspace", name="gone", profile="", now=tx.now)
        raise StoreUnavailable("on purpose")

    assert await in_one_group(store, writes("a"), verb, writes("b")) == ["a", "store_unavailable", "b"]
    assert await written(store) == {"a", "b"}


async def test_verb_awaiting_something_else_is_refused_and_rolled_back(store: SqliteStore) -> None:
    async def verb(tx: Tx) -> None:
        await tx.run("add_workspace", name="gone", profile="", now=tx.now)
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="a verb can only await its transaction"):
        await store.run(verb)
    assert await written(store) == set()


async def test_context_variables_reach_the_verb(store: SqliteStore) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def verb(tx: Tx) -> str:
        return name.get()

    async def call(value: str) -> tuple[str, str]:
        name.set(value)
        return await store.run(verb), await store.read(verb)

    assert list(await asyncio.gather(call("ada"), call("bob"))) == [("ada", "ada"), ("bob", "bob")]


async def test_dead_writer_fails_its_waiting_calls(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_group: object) -> None:
        raise SystemError("the thread is broken")

    monkeypatch.setattr(store, "_run_group", dies)
    assert await answers(store.run(writes("a")), store.run(writes("b"))) == ["store_unavailable"] * 2
    assert await answers(store.run(writes("c"))) == ["store_unavailable"]


async def test_call_timed_out_before_its_turn_changes_nothing(store: SqliteStore) -> None:
    begun, enough = threading.Event(), threading.Event()

    async def slow(tx: Tx) -> None:
        begun.set()
        enough.wait()

    busy = asyncio.create_task(store.run(slow))
    await asyncio.to_thread(begun.wait)
    with given(store, 0.05):
        assert await answers(store.run(writes("late"))) == ["operation_timeout"]
    enough.set()
    await busy
    assert await store.run(writes("next")) == "next"
    assert await written(store) == {"next"}


async def test_full_disk_fails_one_submit_and_nothing_else(tmp_path: Path) -> None:
    """The same through the queue: acknowledged tasks are kept, and the queue works again once there is space."""
    async with Queue.open(f"sqlite:///{tmp_path}/queue.db") as queue:
        kept = await queue.submit(type="code")
        store = queue.engine.store
        assert isinstance(store, SqliteStore)
        store._connection.pragma("max_page_count", store._connection.pragma("page_count"))
        with pytest.raises(ShiftworkError) as refused:
            await queue.submit_many([{"type": "code", "payload": {"text": "x" * 5000}}] * 50)
        assert refused.value.code == "store_full"
        assert (await queue.status()).counts == {"ready": 1}
        store._connection.pragma("max_page_count", 1 << 30)
        assert [taken.id for taken in await queue.claim("worker")] == [kept.id]
    check = apsw.Connection(f"{tmp_path}/queue.db")
    assert check.pragma("integrity_check") == "ok"
    check.close()
