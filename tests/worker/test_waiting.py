"""Handlers that wait for a time, an event or a person: they give their slot back, and go on where they were."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time, run_until_idle
from shiftwork.worker import Context, Done, WaitExpired, Worker


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


async def test_subtasks_are_spawned_once_however_often_the_handler_runs(queue: Queue) -> None:
    """Without a look at `ctx.subtasks()`: each run comes to the same calls, and is answered by the first one's."""
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
    subtasks = (await queue.tasks(parent=made.id)).tasks
    assert sorted(task.type for task in subtasks) == ["note", "square", "square", "square"]
    (note,) = [task.id for task in subtasks if task.type == "note"]
    assert (await queue.result(made.id)).data == [note, [4, 9], 169, "13 squared"]
    assert runs == [0, 0, 0]


async def test_an_attempt_that_fails_after_it_spawned_leaves_its_subtasks_to_the_next(queue: Queue) -> None:
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
    (note,) = (await queue.tasks(parent=made.id)).tasks
    assert (await queue.result(made.id)).data == note.id


async def test_a_handler_that_spawns_in_rounds_may_still_decide_by_its_subtasks(queue: Queue) -> None:
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


async def test_a_plan_whose_types_change_between_runs_is_known_by_its_name(queue: Queue) -> None:
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


async def test_a_retry_in_a_row_of_its_own_gets_the_subtasks_of_the_first(queue: Queue) -> None:
    await queue.set_setting("retry.mode", "new_task")
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
    tasks = (await queue.tasks()).tasks
    assert [task.type for task in tasks].count("note") == 1
    (last,) = [task for task in tasks if task.type == "plan" and task.superseded_by is None]
    assert (await queue.result(last.id)).data == ["noted"]
