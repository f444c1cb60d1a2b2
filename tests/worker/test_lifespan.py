"""Resources of a worker: opened before its first claim, closed after its last result, available to every handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shiftwork import Context, Queue, Worker
from shiftwork.model.errors import InputError, LifespanFailed
from tests.worker.steps import until


async def test_lifespan_is_open_from_before_the_first_claim_to_after_the_last_result(
    shop: Queue, store_url: str
) -> None:
    worker, seen = Worker("ada"), []

    @worker.lifespan
    async def numbers() -> AsyncIterator[list[int]]:
        seen.append(f"open with {len(await shop.agents.list())} agents")
        yield [1, 2]
        seen.append(f"closed with {[task.status for task in (await shop.tasks.list()).tasks]}")

    @worker.lifespan
    @asynccontextmanager
    async def words() -> AsyncIterator[str]:
        yield "word"
        seen.append("second closed first")

    @worker.task
    async def add(ctx: Context) -> int:
        return sum(numbers.of(ctx)) + len(words.of(ctx))

    task = await shop.submit(type="add")
    await worker.run(store_url, until_idle=True)
    assert (await shop.result(task.id)).data == 7
    assert seen == ["open with 0 agents", "second closed first", "closed with ['completed']"]


async def test_lifespan_that_fails_stops_the_worker_before_it_claims(shop: Queue, store_url: str) -> None:
    worker = Worker("ada")
    closed: list[str] | None = []

    @worker.lifespan
    async def first() -> AsyncIterator[None]:
        try:
            yield
        finally:
            assert closed is not None
            closed.append("first")

    @worker.lifespan
    async def second() -> AsyncIterator[None]:
        if closed is not None:
            raise ConnectionError("no route")
        yield

    @worker.task
    async def add() -> int:
        return 1

    task = await shop.submit(type="add")
    with pytest.raises(LifespanFailed, match=r"second.*ConnectionError: no route"):
        await worker.run(store_url, until_idle=True)
    assert closed == ["first"]
    assert (await shop.get(task.id)).status == "ready"
    assert await shop.agents.list() == []


async def test_worker_that_is_stopped_while_it_opens_something_ends(store_url: str, shop: Queue) -> None:
    worker, opening, cancelled = Worker("ada"), asyncio.Event(), asyncio.Event()

    @worker.lifespan
    async def slow() -> AsyncIterator[None]:
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        yield

    @worker.task
    async def add() -> int:
        return 1

    running = asyncio.create_task(worker.run(store_url))
    await opening.wait()
    worker.stop()
    assert (await running).completed == 0
    assert cancelled.is_set()


async def test_lifespan_that_ends_by_itself_stops_the_worker(shop: Queue, store_url: str) -> None:
    worker, gone = Worker("ada"), asyncio.Event()

    @worker.lifespan
    async def group() -> AsyncIterator[None]:
        async def fail_later() -> None:
            await gone.wait()
            raise ConnectionError("lost")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail_later())
            yield

    @worker.task
    async def add() -> int:
        return 1

    running = asyncio.create_task(worker.run(store_url))

    async def registered() -> bool:
        return bool(await shop.agents.list())

    await until(registered)
    gone.set()
    assert (await running).completed == 0


async def test_error_on_closing_is_logged_and_loses_no_result(
    shop: Queue, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker("ada")

    @worker.lifespan
    async def numbers() -> AsyncIterator[int]:
        yield 1
        raise ConnectionError("too late")

    @worker.task
    async def add(ctx: Context) -> int:
        return numbers.of(ctx)

    task = await shop.submit(type="add")
    assert (await worker.run(store_url, until_idle=True)).completed == 1
    assert (await shop.result(task.id)).data == 1
    assert "could not be closed" in caplog.text


def takes_an_argument(url: str) -> Any: ...


async def never_yields() -> None: ...


@pytest.mark.parametrize("function", [takes_an_argument, never_yields, "text"])
def test_object_that_is_no_context_manager_is_refused_when_registered(function: Any) -> None:
    with pytest.raises(InputError):
        Worker().lifespan(function)


async def test_lifespan_of_another_worker_is_refused(shop: Queue, store_url: str) -> None:
    worker, other = Worker("ada"), Worker("bob")

    @other.lifespan
    async def numbers() -> AsyncIterator[int]:
        yield 1

    @worker.task
    async def add(ctx: Context) -> int:
        return numbers.of(ctx)

    task = await shop.submit(type="add", max_attempts=1)
    await worker.run(store_url, until_idle=True)
    assert "not a lifespan of this worker" in str((await shop.get(task.id)).last_error)
