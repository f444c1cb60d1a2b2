"""Handlers that wait for a time, an event or a person: they release their slot, and continue where they were."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time, run_until_idle
from shiftwork.worker import Context, Done, WaitExpired, Worker


async def idle(worker: Worker, queue: Queue) -> Any:
    return await worker.run(queue, until_idle=True)


async def test_handler_sleeps_and_continues(queue: Queue, clock: MovedClock) -> None:
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


async def test_loop_of_sleeps_creates_one_wait_each(queue: Queue, clock: MovedClock) -> None:
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


async def test_handler_gets_the_value_of_a_signal(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> Any:
        ctx.spent(cost_usd=0.25)
        return await ctx.wait_signal("build", "built")

    made = await queue.submit(type="code")
    await idle(worker, queue)
    assert (await queue.get(made.id)).cost_usd == 0.25  # booked before the slot was released
    await queue.waits.signal("built", {"number": 7})
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == {"number": 7}


async def test_handler_asks_a_question_and_gets_the_answer(queue: Queue) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> Any:
        try:
            sure = await ctx.ask("sure", "Ship it?", schema={"type": "boolean"})
        except Exception as error:  # parking is not an exception that a handler could swallow
            raise AssertionError from error
        return "shipped" if sure else "kept"

    made = await queue.submit(type="code")
    await idle(worker, queue)
    (asked,) = await queue.approvals.list()
    assert (asked.question, asked.name) == ("Ship it?", "sure")
    await queue.approvals.answer(made.id, False)
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == "kept"


@pytest.mark.parametrize("wait", ["signal", "question"])
async def test_expired_wait_raises_in_the_handler(queue: Queue, clock: MovedClock, wait: str) -> None:
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


async def test_uncaught_expired_wait_is_not_retried(queue: Queue, clock: MovedClock) -> None:
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


async def test_subtasks_are_spawned_once_over_several_runs(queue: Queue) -> None:
    """Without a check of `ctx.subtasks()`: each run makes the same calls, and gets the answers of the first."""
    worker = Worker()
    runs: list[int] = []

    @worker.handler("plan")
    async def plan(ctx: Context) -> list[Any]:
        runs.append(ctx.task.attempts)
        (note,) = await ctx.spawn([{"type": "note"}])
        squares = await ctx.spawn_and_wait([{"type": "square", "payload": {"n": n}} for n in (2, 3)])
        more = await ctx.spawn_and_wait([{"type": "square", "payload": {"n": sum(each.data for each in squares)}}])
        return [note.id, sorted(each.data for each in squares), more[0].data, more[0].text]

    @worker.handler("square")
    async def square(ctx: Context) -> Done:
        return Done(ctx.payload["n"] ** 2, text=f"{ctx.payload['n']} squared")

    worker.handler("note")(lambda _: "noted")
    made = await queue.submit(type="plan")
    await idle(worker, queue)
    subtasks = (await queue.tasks.list(parent=made.id)).tasks
    assert sorted(task.type for task in subtasks) == ["note", "square", "square", "square"]
    (note,) = [task.id for task in subtasks if task.type == "note"]
    assert (await queue.result(made.id)).data == [note, [4, 9], 169, "13 squared"]
    assert runs == [0, 0, 0]


async def test_failed_attempt_leaves_its_subtasks_to_the_next(queue: Queue) -> None:
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: Context) -> str:
        (note,) = await ctx.spawn([{"type": "note"}])
        if ctx.task.attempts == 0:
            raise RuntimeError("the power went")
        return note.id

    worker.handler("note")(lambda _: "noted")
    made = await queue.submit(type="plan", retry={"strategy": "immediate"})
    await idle(worker, queue)
    (note,) = (await queue.tasks.list(parent=made.id)).tasks
    assert (await queue.result(made.id)).data == note.id


async def test_handler_can_spawn_in_rounds_by_its_subtasks(queue: Queue) -> None:
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: Context) -> list[str]:
        known = {subtask.type for subtask in await ctx.subtasks()}
        if "write" not in known:
            await ctx.spawn_and_wait([{"type": "write"}])
        if "check" not in known:
            await ctx.spawn_and_wait([{"type": "check"}])
        return sorted(known)

    for type_ in ("write", "check"):
        worker.handler(type_)(lambda ctx: ctx.type)
    made = await queue.submit(type="plan")
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == ["check", "write"]


async def test_named_spawn_is_recognised_when_its_types_change(queue: Queue) -> None:
    worker = Worker()
    types = iter(["write", "draw"])

    @worker.handler("plan")
    async def plan(ctx: Context) -> list[str]:
        done = await ctx.spawn_and_wait([{"type": next(types)}], name="parts")
        return [subtask.data for subtask in done]

    for type_ in ("write", "draw"):
        worker.handler(type_)(lambda ctx: ctx.type)
    made = await queue.submit(type="plan")
    await idle(worker, queue)
    assert (await queue.result(made.id)).data == ["write"]


async def test_retry_as_new_task_gets_subtasks_of_the_first(queue: Queue) -> None:
    await queue.settings.set("retry.mode", "new_task")
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: Context) -> list[str]:
        done = await ctx.spawn_and_wait([{"type": "note"}])
        if ctx.task.retry_of is None:
            raise RuntimeError("the power went")
        return [subtask.data for subtask in done]

    worker.handler("note")(lambda _: "noted")
    await queue.submit(type="plan", retry={"strategy": "immediate"})
    await idle(worker, queue)
    tasks = (await queue.tasks.list()).tasks
    assert [task.type for task in tasks].count("note") == 1
    (last,) = [task for task in tasks if task.type == "plan" and task.superseded_by is None]
    assert (await queue.result(last.id)).data == ["noted"]
