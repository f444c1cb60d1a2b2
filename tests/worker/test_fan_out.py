"""Handlers that distribute work over subtasks and continue with their outcomes, failures included."""

from dataclasses import dataclass
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, TaskCancelled, TaskFailed
from shiftwork.testing import MovedClock, run_until_idle
from shiftwork.worker import Context, Fail, Subtask, SubtasksFailed, Worker
from tests.worker.steps import verbs


@dataclass
class Size:
    """The result of a typed task."""

    chars: int


def squarer(worker: Worker) -> list[int]:
    """Register a handler of `square` that refuses negative numbers; return the numbers it received."""
    given: list[int] = []

    @worker.handler("square")
    async def square(ctx: Context) -> int:
        n: int = ctx.payload["n"]
        given.append(n)
        if n < 0:
            raise Fail("invalid_input", f"{n} is negative", retry=False)
        return n * n

    return given


async def test_handler_continues_with_partial_results(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)
    seen: list[Subtask] = []

    @worker.handler("sum")
    async def total(ctx: Context) -> int:
        tasks = [{"type": "square", "payload": {"n": n}} for n in (2, -1, 3)]
        seen[:] = await ctx.spawn_and_wait(tasks, failures="return")
        return sum(each.output for each in seen if each.completed)

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == 13
    assert [(each.status, each.data, each.reason, each.error) for each in seen] == [
        ("completed", 4, None, None),
        ("dead_lettered", None, "invalid_input", "-1 is negative"),
        ("completed", 9, None, None),
    ]
    assert {each.type for each in seen} == {"square"}
    assert len((await queue.tasks.list(parent=made.id)).tasks) == 3


async def test_map_returns_results_in_the_order_of_the_inputs(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    given = squarer(worker)

    @worker.handler("sum")
    async def total(ctx: Context) -> list[int]:
        return await ctx.map("square", ({"n": n} for n in (5, 1, 4)))

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == [25, 1, 16]
    assert sorted(given) == [1, 4, 5]
    assert (await verbs(queue, made.id)).count("waited") == 1


async def test_map_of_nothing_returns_nothing_and_keeps_the_slot(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("sum")
    async def total(ctx: Context) -> list[Any]:
        return await ctx.map("square", [])

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == []
    assert "waited" not in await verbs(queue, made.id)


async def test_map_of_a_thousand_inputs_waits_once(sqlite_url: str) -> None:
    worker = Worker(concurrency=50)

    @worker.handler("square")
    async def square(ctx: Context) -> int:
        return int(ctx.payload["n"]) ** 2

    @worker.handler("sum")
    async def total(ctx: Context) -> int:
        return sum(await ctx.map("square", [{"n": n} for n in range(1000)]))

    async with Queue.open(sqlite_url) as queue:
        made = await queue.submit(type="sum")
        await worker.run(queue, until_idle=True)
        assert (await queue.result(made.id)).data == sum(n * n for n in range(1000))
        assert (await verbs(queue, made.id)).count("waited") == 1


async def test_map_raises_one_error_that_names_the_failed_inputs(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)

    @worker.handler("sum")
    async def total(ctx: Context) -> list[int]:
        return await ctx.map("square", [{"n": n} for n in (2, -1, -7)])

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    task = await queue.get(made.id)
    assert (task.status, task.failure_reason, task.attempts) == ("dead_lettered", "subtasks_failed", 1)
    error = task.last_error or ""
    assert error.startswith("2 of 3 subtasks failed: input 1: ")
    assert "input 2: " in error
    assert "-7 is negative" in error


async def test_error_of_a_map_can_be_caught(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)

    @worker.handler("sum")
    async def total(ctx: Context) -> list[int]:
        try:
            return await ctx.map("square", [{"n": n} for n in (2, -1)])
        except SubtasksFailed as error:
            return sorted(error.failed)

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == [1]


async def test_map_returns_failures_in_their_place(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)
    seen: list[Any] = []

    @worker.handler("sum")
    async def total(ctx: Context) -> None:
        seen[:] = await ctx.map("square", [{"n": n} for n in (2, -1, 3)], failures="return")

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.get(made.id)).status == "completed"
    assert (seen[0], seen[2]) == (4, 9)
    assert isinstance(seen[1], TaskFailed)
    assert (seen[1].reason, seen[1].error) == ("invalid_input", "-1 is negative")


async def test_map_returns_a_cancelled_subtask_as_such(queue: Queue, clock: MovedClock) -> None:
    worker, seen = Worker(), list[Any]()

    @worker.handler("sum")
    async def total(ctx: Context) -> None:
        seen[:] = await ctx.map("square", [{"n": 1}], failures="return")

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    (part,) = (await queue.tasks.list(parent=made.id)).tasks
    await queue.cancel(part.id, "not wanted")
    await run_until_idle(worker, queue, clock=clock)
    (found,) = seen
    assert isinstance(found, TaskCancelled)
    assert found.task_id == part.id


async def test_map_after_a_crash_spawns_nothing_new(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    given = squarer(worker)
    runs: list[int] = []

    @worker.handler("sum")
    async def total(ctx: Context) -> list[int]:
        found = await ctx.map("square", [{"n": n} for n in range(150)])
        runs.append(len(found))
        if len(runs) == 1:
            raise RuntimeError("the power went")
        return found[:3]

    made = await queue.submit(type="sum", retry={"strategy": "immediate"})
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == [0, 1, 4]
    assert runs == [150, 150]
    assert sorted(given) == list(range(150))


async def test_retried_subtask_does_not_change_what_a_map_returned(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    allowed: list[bool] = []
    seen: list[list[Any]] = []

    @worker.handler("part")
    async def part(ctx: Context) -> str:
        if not allowed:
            raise Fail("invalid_input", "not yet", retry=False)
        return "done"

    @worker.handler("whole")
    async def whole(ctx: Context) -> None:
        seen.append(await ctx.map("part", [{}], failures="return"))
        if len(seen) == 1:
            (failed,) = seen[0]
            allowed.append(True)
            await queue.dead_letters.review(failed.task_id, "retry")
            raise RuntimeError("the power went")

    made = await queue.submit(type="whole", retry={"strategy": "immediate"})
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.get(made.id)).status == "completed"
    assert [type(found) for (found,) in seen] == [TaskFailed, TaskFailed]


async def test_two_maps_of_one_type_are_independent(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)

    @worker.handler("sum")
    async def total(ctx: Context) -> list[int]:
        first = await ctx.map("square", [{"n": 2}])
        return [*first, *await ctx.map("square", [{"n": first[0]}])]

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == [4, 16]


async def test_limit_bounds_how_many_run_at_once(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("sum")
    async def total(ctx: Context) -> int:
        return len(await ctx.map("part", [{"n": n} for n in range(7)], limit=3))

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    await queue.agents.register(id="hand", max_concurrent_tasks=10)
    most, done = 0, 0
    while held := await queue.claim("hand", 10, types=["part"], start=True):
        most, done = max(most, len(held)), done + len(held)
        for each in held:
            await queue.complete(each.token)
    assert (most, done) == (3, 7)
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(made.id)).data == 7


async def test_typed_task_encodes_inputs_and_decodes_results(queue: Queue, clock: MovedClock) -> None:
    worker, seen = Worker(), list[Size]()

    @worker.task
    async def measure(text: str) -> Size:
        return Size(len(text))

    @worker.handler("sum")
    async def total(ctx: Context) -> None:
        seen[:] = await ctx.map(measure, ["ab", "abc"])

    await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert seen == [Size(2), Size(3)]


BAD_MAPS: dict[str, tuple[dict[str, Any], str]] = {
    "an input that is no payload": ({"inputs": [{"n": 1}, 7]}, "inputs[1]"),
    "a limit of zero": ({"inputs": [{}], "limit": 0}, "limit"),
    "a limit that is no number": ({"inputs": [{}], "limit": "3"}, "limit"),
    "a type without a name": ({"task": "", "inputs": [{}]}, "inputs[0].type"),
    "failures that are ignored": ({"inputs": [{}], "failures": "ignore"}, "failures"),
}


@pytest.mark.parametrize("case", BAD_MAPS)
async def test_bad_map_is_refused_and_spawns_nothing(queue: Queue, clock: MovedClock, case: str) -> None:
    worker, errors = Worker(), list[InputError]()
    fields, where = BAD_MAPS[case]

    @worker.handler("sum")
    async def total(ctx: Context) -> None:
        try:
            await ctx.map(**{"task": "part", **fields})
        except InputError as error:
            errors.append(error)

    made = await queue.submit(type="sum")
    await run_until_idle(worker, queue, clock=clock)
    assert [error.where for error in errors] == [where]
    assert (await queue.tasks.list(parent=made.id)).tasks == []


async def test_map_of_other_inputs_in_a_later_run_is_refused(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    squarer(worker)
    counts = [2, 3]

    @worker.handler("sum")
    async def total(ctx: Context) -> None:
        await ctx.map("square", [{"n": n} for n in range(counts.pop(0))])

    made = await queue.submit(type="sum", max_attempts=1)
    await run_until_idle(worker, queue, clock=clock)
    assert "mapped 2 inputs before, not 3" in ((await queue.get(made.id)).last_error or "")


async def test_message_needs_only_its_text(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> None:
        await ctx.message("halfway there")

    made = await queue.submit(type="code")
    await run_until_idle(worker, queue, clock=clock)
    (said,) = [event for event in (await queue.tasks.history(made.id)).events if event.verb == "message"]
    assert (said.data or {})["text"] == "halfway there"


async def test_rewound_handler_calls_only_the_steps_from_there_on(queue: Queue, clock: MovedClock) -> None:
    worker, called = Worker(), list[str]()

    @worker.handler("report")
    async def report(ctx: Context) -> str:
        for name in ("research", "draft", "polish"):
            await ctx.step(name, called.append, f"{name} {ctx.payload['tone']}")
            clock.advance(1)
            await ctx.effect(f"send-{name}", lambda effect: called.append(f"sent {effect.key.rpartition('-')[2]}"))
            clock.advance(1)
        return str(ctx.payload["tone"])

    made = await queue.submit(type="report", payload={"tone": "dry"})
    await run_until_idle(worker, queue, clock=clock)
    called.clear()
    again = await queue.tasks.rerun(made.id, from_step="draft", payload={"tone": "cheerful"})
    await run_until_idle(worker, queue, clock=clock)
    assert called == ["draft cheerful", "sent draft", "polish cheerful", "sent polish"]
    assert (await queue.result(again.task_id)).data == "cheerful"


async def test_rewound_map_keeps_its_results(queue: Queue, clock: MovedClock) -> None:
    worker = Worker()
    given = squarer(worker)

    @worker.handler("sum")
    async def total(ctx: Context) -> int:
        found = await ctx.map("square", [{"n": n} for n in (2, 3)], name="squares")
        return int(await ctx.step("add", lambda: sum(found) + ctx.payload["more"]))

    made = await queue.submit(type="sum", payload={"more": 0})
    await run_until_idle(worker, queue, clock=clock)
    again = await queue.tasks.rerun(made.id, from_step="add", payload={"more": 10})
    await run_until_idle(worker, queue, clock=clock)
    assert (await queue.result(again.task_id)).data == 23
    assert sorted(given) == [2, 3]
