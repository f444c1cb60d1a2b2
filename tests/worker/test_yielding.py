"""A worker whose task is asked to yield: released without cost, its steps kept, and continued afterwards."""

import asyncio
import threading
import time

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Release, Worker
from tests.worker.steps import at_work, beat_fast, until_status, verbs


@pytest.fixture
async def strict(shop: Queue) -> Queue:
    """A shop in which urgent work takes the place of other work."""
    await beat_fast(shop, 4)
    await shop.settings.set("deadline.preempt_running", value=True)
    return shop


async def urge(queue: Queue) -> str:
    return (await queue.submit(type="urgent", deadline=time.time() + 90)).id


def one_at_a_time() -> tuple[Worker, asyncio.Event]:
    """A worker for urgent tasks; the event is set when one was done."""
    worker, done = Worker("single", concurrency=1, cancel_grace_sec=0.2), asyncio.Event()

    @worker.handler("urgent")
    async def urgent(_: Context) -> None:
        done.set()

    return worker, done


async def test_handler_is_interrupted_to_yield_and_resumes_from_its_steps(strict: Queue, store_url: str) -> None:
    worker, done = one_at_a_time()
    begun, computed = asyncio.Event(), list[int]()

    @worker.handler("long")
    async def long(ctx: Context) -> str:
        async def compute() -> int:
            computed.append(1)
            return len(computed)

        await ctx.step("costly", compute)
        begun.set()
        await done.wait()
        return "in the end"

    made = (await strict.submit(type="long", priority=90)).id
    async with at_work(worker, store_url) as _:
        await begun.wait()
        await urge(strict)
        await until_status(strict, made, "completed")
    task = await strict.get(made)
    assert (len(computed), task.attempts) == (1, 0)
    assert [verb for verb in await verbs(strict, made) if verb in {"yield_asked", "released", "claimed"}] == [
        *("claimed", "yield_asked", "released", "claimed"),
    ]


async def test_handler_can_choose_when_to_yield(strict: Queue, store_url: str) -> None:
    worker, done = one_at_a_time()
    begun, seen = threading.Event(), threading.Event()

    @worker.handler("plain")
    def plain(ctx: Context) -> str:
        begun.set()
        while not ctx.should_yield and not seen.is_set():
            time.sleep(0.01)
        if not seen.is_set():
            seen.set()
            raise Release("at a good place")
        return "in the end"

    made = (await strict.submit(type="plain", priority=90)).id
    async with at_work(worker, store_url):
        await asyncio.to_thread(begun.wait)
        await urge(strict)
        await until_status(strict, made, "completed")
    assert done.is_set()
    given_back = next(event for event in (await strict.tasks.history(made)).events if event.verb == "released")
    assert given_back.reason == "at a good place"


async def test_handler_ending_in_time_submits_its_result(strict: Queue, store_url: str) -> None:
    worker, _ = one_at_a_time()
    begun = asyncio.Event()

    @worker.handler("short")
    async def short(ctx: Context) -> str:
        begun.set()
        while not ctx.should_yield:  # noqa: ASYNC110  # a handler that looks between two pieces of work
            await asyncio.sleep(0.01)
        return "done"

    made = (await strict.submit(type="short", priority=90)).id
    async with at_work(worker, store_url):
        await begun.wait()
        urgent = await urge(strict)
        await until_status(strict, urgent, "completed")
    assert (await strict.get(made)).status == "completed"
    assert "released" not in await verbs(strict, made)
