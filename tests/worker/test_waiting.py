"""Handlers that wait for a time, an event or a person: they give their slot back, and go on where they were."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time, run_until_idle
from shiftwork.worker import Context, WaitExpired, Worker


async def idle(worker: Worker, queue: Queue) -> Any:
    return await worker.run(queue, until_idle=True)


async def test_a_handler_sleeps_and_goes_on(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    began: list[float] = []

    @worker.handler("code")
    async def code(ctx: Context) -> float:
        began.append(clock())
        await ctx.sleep_until("nap", clock() + 3600)
        return clock()

    made = await queue.submit(type="code")
    assert (await idle(worker, queue)).parked == 1
    assert (await queue.get(made.id)).status == "pending"
    summary = await run_until_idle(worker, queue, clock=clock)
    assert (summary.completed, summary.failed) == (1, 0)
    assert (await queue.result(made.id)).data == began[0] + 3600
    assert (await queue.get(made.id)).attempts == 0
    assert len(began) == 2


async def test_a_loop_of_sleeps_is_as_many_waits(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        for _ in range(3):
            await ctx.sleep_until("poll", clock() + 60)

    began = clock()
    made = await queue.submit(type="code")
    assert (await run_until_idle(worker, queue, clock=clock)).parked == 3
    assert (await queue.get(made.id)).status == "completed"
    assert clock() == began + 180


async def test_a_handler_gets_what_an_event_said(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> Any:
        ctx.spent(cost_usd=0.25)
        return await ctx.wait_signal("build", "built")

    made = await queue.submit(type="code")
    await idle(worker, queue)
    assert (await queue.get(made.id)).cost_usd == 0.25  # booked before the slot was given back
    await queue.signal("built", {"number": 7})
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == {"number": 7}


async def test_a_handler_asks_a_person(queue: Queue) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> Any:
        try:
            sure = await ctx.ask("sure", "Ship it?", schema={"type": "boolean"})
        except Exception as error:  # parking is no exception that a handler could swallow
            raise AssertionError from error
        return "shipped" if sure else "kept"

    made = await queue.submit(type="code")
    await idle(worker, queue)
    (asked,) = await queue.approvals()
    assert (asked.question, asked.name) == ("Ship it?", "sure")
    await queue.answer(made.id, False)
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == "kept"


@pytest.mark.parametrize("wait", ["signal", "question"])
async def test_what_does_not_come_in_time_is_told(queue: Queue, clock: MovedClock, wait: str) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        try:
            if wait == "signal":
                await ctx.wait_signal("w", "go", timeout_sec=60)
            else:
                await ctx.ask("w", "Go?", timeout_sec=60)
        except WaitExpired as expired:
            return f"{expired.wait.name} {expired.wait.status}"
        return "came"

    made = await queue.submit(type="code")
    await idle(worker, queue)
    await pass_time(queue, clock, 60)
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == "w expired"


async def test_an_expiry_that_no_handler_catches_is_not_tried_again(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        await ctx.wait_signal("w", "go", timeout_sec=60)

    made = await queue.submit(type="code")
    await idle(worker, queue)
    await pass_time(queue, clock, 60)
    await idle(worker, queue)
    task = await queue.get(made.id)
    assert (task.status, task.failure_reason) == ("dead_lettered", "wait_expired")
