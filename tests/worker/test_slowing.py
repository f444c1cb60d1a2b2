"""Somebody met a rate limit: handlers that run are told to go slow."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.worker import Context, Worker
from tests.worker.steps import at_work, until_status


@pytest.mark.requirement("L-141")
async def test_running_handlers_are_told_for_how_long(shop: Queue, store_url: str) -> None:
    worker = Worker("careful")
    begun = asyncio.Event()
    told: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        before = ctx.slow_down_sec
        begun.set()
        while not ctx.slow_down_sec:  # noqa: ASYNC110  # a handler that looks between two calls to its provider
            await asyncio.sleep(0.01)
        told.set_result((before, ctx.slow_down_sec))

    await shop.submit(type="long")
    async with at_work(worker, store_url):
        await begun.wait()
        await meet_a_limit(shop)
        before, asked = await told
    assert before == 0
    assert 200 < asked <= 300


async def test_a_handler_that_begins_is_told_at_once(shop: Queue, store_url: str) -> None:
    """Also between two heartbeats of an idle worker, which are far apart."""
    worker = Worker("careful")
    told: asyncio.Queue[float] = asyncio.Queue()

    @worker.handler("long")
    async def long(ctx: Context) -> None:
        told.put_nowait(ctx.slow_down_sec)

    async with at_work(worker, store_url):
        first = await shop.submit(type="long")
        assert await told.get() == 0
        await until_status(shop, first.id, "completed")
        await meet_a_limit(shop)
        await shop.submit(type="long")
        assert 200 < await told.get() <= 300


async def test_when_the_limit_is_lifted_so_is_that(shop: Queue, store_url: str) -> None:
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
        for cooldown in await shop.cooldowns():
            await shop.lift_cooldown(cooldown.key)
        await over.wait()


async def meet_a_limit(shop: Queue) -> None:
    await shop.submit(type="short")
    (held,) = await shop.claim("hasty", types=["short"], start=True)
    await shop.fail(held.token, "rate_limit", "retry-after: 600")
