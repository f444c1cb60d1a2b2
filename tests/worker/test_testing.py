"""Test support for users: a worker that runs until idle on a controlled clock."""

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time, run_until_idle
from shiftwork.worker import Context, Worker


def unlucky() -> Worker:
    worker = Worker()

    @worker.handler("code")
    async def code(ctx: Context) -> str:
        if ctx.task.attempts < 2:
            raise RuntimeError("boom")
        return "done"

    return worker


async def test_without_a_clock_run_ends_when_nothing_is_claimable(queue: Queue) -> None:
    made = await queue.submit(type="code")
    summary = await run_until_idle(unlucky(), queue)
    assert ((await queue.get(made.id)).status, summary.failed) == ("retrying", 1)


async def test_with_its_clock_every_retry_runs_at_once(queue: Queue, clock: MovedClock) -> None:
    began = clock()
    first = await queue.submit(type="code")
    after = await queue.submit(type="code", dependencies=[first.id])
    summary = await run_until_idle(unlucky(), queue, clock=clock)
    assert (summary.failed, summary.completed) == (4, 2)
    assert [(await queue.get(task.id)).status for task in (first, after)] == ["completed", "completed"]
    assert clock() > began + 30  # ten seconds and twenty, twice, give or take the jitter


async def test_dead_letter_ends_the_run(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code", max_attempts=2)
    summary = await run_until_idle(unlucky(), queue, clock=clock)
    assert ((await queue.get(made.id)).status, summary.failed) == ("dead_lettered", 2)


async def test_passing_time_runs_jobs_that_have_work_although_they_just_ran(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code", retry={"jitter": False, "initial_delay_sec": 1})
    for _ in range(2):
        (held,) = await queue.claim("worker", start=True)
        await queue.fail(held.token, "crash")
        assert (await pass_time(queue, clock, 2))["promote"] == {"promoted": 1}
        assert (await queue.get(made.id)).status == "ready"


async def test_passing_time_runs_jobs_without_a_poll_only_when_they_are_due(queue: Queue, clock: MovedClock) -> None:
    for seconds, expected in ((0, 1), (29, 1), (1, 2)):
        await pass_time(queue, clock, seconds)
        (alerts,) = [job for job in await queue.control.maintenance() if job.name == "alerts"]
        assert alerts.runs == expected
