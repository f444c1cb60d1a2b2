"""No call lasts longer than its setting: it ends with an error, and nothing has changed."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from shiftwork import Queue
from shiftwork.engine.coalesce import Coalescer
from shiftwork.model.errors import OperationTimeout, StoreUnavailable
from shiftwork.store import deadline
from shiftwork.store.sqlite import SqliteStore
from shiftwork.store.store import Tx
from tests.stores.stalling import given, stalled
from tests.worker.steps import until


@pytest.mark.requirement("C-224")
async def test_stalled_call_times_out_with_nothing_changed(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        assert queue.engine.store.operation_max_sec == 30
        await queue.settings.set("operation_max_sec", 1)
    async with Queue.open(store_url) as queue:
        limit = queue.engine.store.operation_max_sec
        assert limit == 1
        with given(queue.engine.store, 30):
            made = await queue.submit(type="code")
            async with stalled(queue, made.id):
                with given(queue.engine.store, limit), pytest.raises(OperationTimeout):
                    await queue.cancel(made.id)
            assert (await queue.get(made.id)).status == "ready"
            assert (await queue.cancel(made.id)).status == "cancelled"


@pytest.mark.requirement("C-224")
async def test_call_waiting_behind_a_batch_times_out_alone(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        first, second = await queue.submit_many([{"type": "code"}, {"type": "code"}])
        claims = [await queue.claim(agent, start=True) for agent in ("ada", "bob")]
        tokens = {held.id: held.token for (held,) in claims}
        async with stalled(queue, first.id):
            waiting = asyncio.create_task(queue.complete(tokens[first.id], 1))
            await until(lambda: under_way(queue))
            with given(queue.engine.store, 0.5), pytest.raises(OperationTimeout):
                await queue.complete(tokens[second.id], 2)
            assert not waiting.done()  # the batch before it
        await waiting
        assert (await queue.get(second.id)).status == "running"
        await queue.complete(tokens[second.id], 2)


def under_way(queue: Queue) -> bool:
    """Whether a batch has been begun, and nothing waits to join the next."""
    joined = queue.executor.shared.coalescers.values()
    return any(not each._is_idle() and not each._calls for each in joined)


async def test_batch_is_retried_without_its_timed_out_call() -> None:
    """Joined calls with time left are retried: nothing was changed for any of them."""
    tried: list[list[int]] = []

    async def run(items: Sequence[int]) -> Sequence[int]:
        tried.append(list(items))
        if 1 in items:
            async with asyncio.timeout(deadline.left(30)):
                await asyncio.Event().wait()
        return items

    async def timed_out(items: Sequence[int]) -> Sequence[int]:
        try:
            return await run(items)
        except TimeoutError:
            raise OperationTimeout("late") from None

    limits = iter([0.2, 30.0])
    coalescer = Coalescer[int, int](timed_out, lambda: next(limits, 30.0))
    answers = await asyncio.gather(coalescer.call(1), coalescer.call(2), return_exceptions=True)
    assert isinstance(answers[0], OperationTimeout)
    assert answers[1] == 2
    assert tried == [[1, 2], [2]]


async def test_slow_commit_is_reported_as_unknown(sqlite_url: str) -> None:
    """The verb has run, but the outcome of its commit is unknown."""
    async with Queue.open(sqlite_url) as queue:
        store = queue.engine.store
        assert isinstance(store, SqliteStore)
        begun, enough = threading.Event(), threading.Event()

        def slow(*_: object) -> bool:
            begun.set()
            enough.wait()
            return False  # it may be committed

        await queue.submit(type="code")  # its lane is learned, which is a transaction of its own
        store._connection.set_commit_hook(slow)
        with given(store, 0.5):
            call = asyncio.create_task(queue.submit(type="code"))
            await asyncio.to_thread(begun.wait)
            with pytest.raises(StoreUnavailable, match="unknown whether this was done"):
                await call
        enough.set()
        await until_counted(queue, 2)


async def until_counted(queue: Queue, ready: int) -> None:
    async def counted() -> bool:
        return (await queue.status()).counts == {"ready": ready}

    await until(counted)


async def test_verb_that_takes_too_long_is_rolled_back(sqlite_url: str) -> None:
    async with Queue.open(sqlite_url) as queue:
        begun, enough = threading.Event(), threading.Event()

        async def slow(tx: Tx) -> None:
            await tx.run("add_workspace", name="late", profile="standard", now=tx.now)
            begun.set()
            enough.wait()

        with given(queue.engine.store, 0.5):
            call = asyncio.create_task(queue.engine.store.run(slow))
            await asyncio.to_thread(begun.wait)
            with pytest.raises(OperationTimeout):
                await call
        enough.set()
        rows = await queue.engine.store.run(lambda tx: tx.all("list_workspaces"))
        assert [row["name"] for row in rows] == []  # not even the workspace that its first write records
