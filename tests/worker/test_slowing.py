"""After a rate limit, running handlers are told to slow down."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Worker
from tests.worker.steps import at_work, until_status


@pytest.mark.requirement("L-141")
async def test_running_handlers_see_the_slowdown_duration(shop: Queue, store_url: str) -> None:
    worker = Worker("careful")
    begun = asyncio.Event()
    found: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        before = ctx.slow_down_sec
        begun.set()
        while not ctx.slow_down_sec:  # noqa: ASYNC110  # a handler that looks between two calls to its provider
            await asyncio.sleep(0.01)
        found.set_result((before, ctx.slow_down_sec))

    await shop.submit(type="long")
    async with at_work(worker, store_url):
        await begun.wait()
        await meet_a_limit(shop)
        before, asked = await found
    assert before == 0
    assert 200 < asked <= 300


async def test_new_handler_sees_the_slowdown_at_once(shop: Queue, store_url: str) -> None:
    """Also between two heartbeats of an idle worker, which are far apart."""
    worker = Worker("careful")
    found: asyncio.Queue[float] = asyncio.Queue()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        found.put_nowait(ctx.slow_down_sec)

    async with at_work(worker, store_url):
        first = await shop.submit(type="long")
        assert await found.get() == 0
        await until_status(shop, first.id, "completed")
        await meet_a_limit(shop)
        await shop.submit(type="long")
        assert 200 < await found.get() <= 300


async def test_lifted_cooldown_ends_the_slowdown(shop: Queue, store_url: str) -> None:
    worker = Worker("careful")
    slow, over = asyncio.Event(), asyncio.Event()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        slow.set() if ctx.slow_down_sec else None
        while ctx.slow_down_sec:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.01)
        over.set()

    await meet_a_limit(shop)
    await shop.submit(type="long")
    async with at_work(worker, store_url):
        await slow.wait()
        for cooldown in await shop.cooldowns.list():
            await shop.cooldowns.lift(cooldown.key)
        await over.wait()


async def meet_a_limit(shop: Queue) -> None:
    await shop.submit(type="short")
    (held,) = await shop.claim("hasty", types=["short"], start=True)
    await shop.fail(held.token, "rate_limit", "retry-after: 600")
