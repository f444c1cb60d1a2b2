"""Concurrent calls form one batch; a single call runs by itself, and its failure affects no other."""

import asyncio
from collections.abc import Sequence

import pytest

from shiftwork.engine.coalesce import MAX_OVERLAPPING, Coalescer
from tests.worker.steps import until


class Batches:
    """Records each batch, and delays it on request."""

    def __init__(self, overlap_sec: float | None = None) -> None:
        self.run: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.coalescer = Coalescer[int, int](self._run, lambda: 30.0, overlap_sec)

    async def _run(self, items: Sequence[int]) -> Sequence[int]:
        self.run.append(list(items))
        await self.open.wait()
        if -1 in items:
            raise RuntimeError("of the batch")
        return [10 * item for item in items]


async def test_concurrent_calls_are_joined_in_their_order() -> None:
    batches = Batches()
    for _ in range(2):
        assert await asyncio.gather(*(batches.coalescer.call(n) for n in range(3))) == [0, 10, 20]
    assert batches.run == [[0, 1, 2], [0, 1, 2]]


async def test_calls_during_a_single_call_form_the_next_batch() -> None:
    batches = Batches()
    await batches.coalescer.call(1)
    batches.open.clear()
    calls = [asyncio.create_task(batches.coalescer.call(n)) for n in range(3)]
    await asyncio.sleep(0)
    batches.open.set()
    assert await asyncio.gather(*calls) == [0, 10, 20]
    assert batches.run == [[1], [0], [1, 2]]


async def test_cancelled_single_call_does_not_block_the_others() -> None:
    batches = Batches()
    await batches.coalescer.call(1)
    batches.open.clear()
    first, second = (asyncio.create_task(batches.coalescer.call(n)) for n in range(2))
    await asyncio.sleep(0)
    first.cancel()
    batches.open.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == 10
    assert await batches.coalescer.call(3) == 30


async def test_error_of_a_single_call_affects_no_other() -> None:
    batches = Batches()
    with pytest.raises(RuntimeError, match="of the batch"):
        await batches.coalescer.call(-1)
    assert await batches.coalescer.call(2) == 20


async def test_single_call_with_overlap_needs_no_asyncio_task() -> None:
    batches = Batches(overlap_sec=60.0)
    await batches.coalescer.call(1)
    batches.open.clear()
    before = asyncio.all_tasks()
    call = asyncio.create_task(batches.coalescer.call(2))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == {call}
    batches.open.set()
    assert await call == 20


async def test_calls_wait_for_a_single_call_no_longer_than_the_overlap() -> None:
    batches = Batches(overlap_sec=0.0)
    await batches.coalescer.call(1)
    batches.open.clear()
    first = asyncio.create_task(batches.coalescer.call(2))
    await asyncio.sleep(0)
    others = [asyncio.create_task(batches.coalescer.call(n)) for n in (3, 4)]
    await until(lambda: len(batches.run) == 3)
    assert batches.run == [[1], [2], [3, 4]]
    assert not first.done()
    batches.open.set()
    assert await asyncio.gather(first, *others) == [20, 30, 40]


async def test_overlapping_single_calls_are_bounded() -> None:
    batches = Batches(overlap_sec=0.0)
    await batches.coalescer.call(0)
    batches.open.clear()
    calls = []
    for n in range(10):
        calls.append(asyncio.create_task(batches.coalescer.call(n)))
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(batches.run) <= 2 + 2 * MAX_OVERLAPPING
    batches.open.set()
    assert await asyncio.gather(*calls) == [10 * n for n in range(10)]
    assert await batches.coalescer.call(7) == 70
