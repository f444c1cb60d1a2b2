"""kill -9 at any instruction: acknowledged work is kept, nothing is accepted twice, the ledger adds up."""

import asyncio
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import apsw
import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.races.fleet import stranded

KILLS = 10
OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""


async def run_until_killed(url: str, lines: int) -> list[tuple[str, str]]:
    """Kill the process some time after this many answers; return what was acknowledged to it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.crashes.busy_client", url, stdout=PIPE)
    assert process.stdout is not None
    heard = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    heard += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    whole = [line.decode().split() for line in heard if line.endswith(b"\n")]
    return [(word, what) for word, what in whole]


@pytest.mark.requirement("F-002", "C-152", "C-153", "C-266")
async def test_acknowledged_work_survives_killed_processes(store_url: str) -> None:
    chance = random.Random(7)
    heard: list[tuple[str, str]] = []
    async with Queue.open(store_url) as queue:
        await queue.settings.set("on_stale", "reclaim")  # its processes die often, and that is not the subject
    for _ in range(KILLS):
        heard += await run_until_killed(store_url, chance.randrange(1, 80))
        await until_alone(store_url)
        async with Queue.open(store_url) as queue:
            await check(queue, heard)
    assert Counter(word for word, _ in heard)["completed"] > KILLS


async def until_alone(url: str) -> None:
    """Wait until the server notices the death of its client, which may take until the end of a statement."""
    if url.startswith("postgresql"):
        connection = await asyncpg.connect(url)
        async with asyncio.timeout(20):
            while await connection.fetchval(OTHERS):  # noqa: ASYNC110 -- the database has no event for it
                await asyncio.sleep(0.005)
        await connection.close()


async def check(queue: Queue, heard: list[tuple[str, str]]) -> None:
    statuses = {task.id: task.status async for task in every_task(queue)}
    events = Counter([(event.verb, event.task_id) async for event in every_event(queue)])
    for word, what in heard:
        if word == "submitted":
            assert what in statuses
        elif word in {"completed", "cancelled"}:
            assert statuses[what] == word
            assert events[word, what] == 1
    assert [what for (verb, what), times in events.items() if verb == "completed" and times > 1] == []
    created = sum(times for (verb, _), times in events.items() if verb == "submitted")
    assert created == len(statuses) == sum((await queue.status()).counts.values())
    ended = {what for (verb, what), _ in events.items() if verb == "completed"}
    assert ended == {id_ for id_, status in statuses.items() if status == "completed"}
    assert await stranded(queue) == []
    if queue.url.startswith("sqlite"):
        connection = apsw.Connection(queue.url.removeprefix("sqlite:///"))
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


async def every_task(queue: Queue) -> AsyncIterator[Any]:
    after = None
    while True:
        page = await queue.tasks.list(after=after, limit=1000)
        for task in page.tasks:
            yield task
        if (after := page.next) is None:
            return


async def every_event(queue: Queue) -> AsyncIterator[Any]:
    after = 0
    while True:
        news = await queue.events(after)
        found, after = news.events, news.next
        if not found:
            return
        for event in found:
            yield event


async def start_worker(
    url: str, agent: str, clock: MovedClock | None = None, runtime: str | None = None
) -> tuple[Process, str]:
    """Start a worker and wait until it has begun its task; return both. The clock is moved to the real time."""
    program = [sys.executable, "-m", "tests.crashes.worker", url, agent, *([runtime] if runtime else [])]
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    token = (await process.stdout.readline()).decode().strip()
    if clock is not None:
        clock.advance(time.time() - clock())
    return process, token


@pytest.mark.requirement("C-096")
async def test_task_of_a_killed_worker_goes_to_another(store_url: str) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        task = await queue.submit(type="code", retry={"strategy": "immediate"})
        worker, _ = await start_worker(store_url, "killed", clock)
        worker.kill()
        await worker.wait()
        assert await queue.claim("other") == []
        await pass_time(queue, clock, 95)
        (again,) = await queue.claim("other", start=True)
        assert again.id == task.id
        assert again.fence == 2
        await queue.complete(again.token)


async def test_late_result_of_a_frozen_worker_is_refused(store_url: str) -> None:
    """Stopped for minutes, it wakes up and submits its result as if nothing had happened."""
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        task = await queue.submit(type="code", retry={"strategy": "immediate"})
        worker, _ = await start_worker(store_url, "frozen", clock)
        worker.send_signal(signal.SIGSTOP)
        await pass_time(queue, clock, 95)
        (again,) = await queue.claim("other", start=True)
        await queue.complete(again.token, {"by": "other"})
        worker.send_signal(signal.SIGCONT)
        out, _ = await worker.communicate(b"finish\n")
        assert out.decode().split() == ["lease_lost"]
        assert (await queue.result(task.id)).data == {"by": "other"}


async def kill_worker(queue: Queue, clock: MovedClock, agent: str) -> None:
    """Kill a worker during its task, and let the queue detect that its process is dead."""
    worker, _ = await start_worker(queue.url, agent, clock, runtime=f"process of {agent}")
    worker.kill()
    await worker.wait()
    await pass_time(queue, clock, 1)


@pytest.mark.requirement("C-096", "C-176", "C-182", "C-183", "A-017")
@pytest.mark.parametrize(
    ("profile", "status", "attempts"),
    [
        ("standard", "retrying", 1),
        ("factory", "retrying", 1),
        ("coscientist", "ready", 1),
        ("aegis", "failed", 1),
        ("loki", "ready", 0),
        ("redis", "ready", 0),
    ],
)
async def test_killed_worker_costs_an_attempt_and_is_named(
    store_url: str, profile: str, status: str, attempts: int
) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        await queue.settings.use_profile(profile)
        made = await queue.submit(type="code", idempotency_key="k")
        await kill_worker(queue, clock, "victim")
        task = await queue.get(made.id)
        assert (task.status, task.attempts) == (status, attempts)
        assert [(failure.agent, "victim" in (failure.note or "")) for failure in task.failure_history] == [
            ("victim", True)
        ] * attempts
        assert [agent.status for agent in await queue.agents.list()] == ["failed"]
        assert [runtime.status for runtime in await queue.runtimes.list()] == ["offline"]
        if attempts:
            assert "failed" in [state for event in (await queue.tasks.history(made.id)).events for state in event.path]
        await pass_time(queue, clock, 30)
        (again,) = await queue.claim("other")
        assert made.id in {again.id, again.task().retry_of}


@pytest.mark.timeout(240)
@pytest.mark.requirement("F-166", "C-099", "C-127", "A-072")
@pytest.mark.parametrize(("profile", "most"), [("standard", 3), ("factory", 3), ("coscientist", 3), ("aegis", 2)])
async def test_task_that_kills_its_worker_runs_max_attempts_times(store_url: str, profile: str, most: int) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        await queue.settings.use_profile(profile)
        await queue.settings.set("retry.strategy", "immediate")
        await queue.submit(type="code")
        for number in range(most):
            await kill_worker(queue, clock, f"victim-{number}")
        assert await queue.claim("other") == []
        counts = (await queue.status(fresh=True)).counts
        assert counts == ({"failed": 2} if profile == "aegis" else {"dead_lettered": 1})


@pytest.mark.requirement("C-184")
async def test_task_of_a_killed_worker_goes_to_the_front_of_its_level(store_url: str) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        await queue.settings.use_profile("coscientist")
        made = [await queue.submit(type="Ranking", payload={"n": n}) for n in range(2)]
        clock.advance(1)
        lost = await queue.submit(type="Ranking", payload={"n": 2})
        await queue.agents.register(id="early", max_concurrent_tasks=2)
        held = await queue.claim("early", 2)
        await kill_worker(queue, clock, "victim")
        await queue.batch.release([assignment.token for assignment in held])
        assert {assignment.id for assignment in held} == {task.id for task in made}
        assert [assignment.id for assignment in await queue.claim("other")] == [lost.id]


async def test_killed_idle_worker_is_marked_failed(store_url: str) -> None:
    clock = MovedClock(time.time())
    async with Queue.open(store_url, clock=clock) as queue:
        made = await queue.submit(type="code")
        worker, _ = await start_worker(store_url, "victim", clock, runtime="host-1")
        await queue.cancel(made.id)
        worker.kill()
        await worker.wait()
        await pass_time(queue, clock, 1)
        assert [(agent.id, agent.status) for agent in await queue.agents.list()] == [("victim", "failed")]
        assert [runtime.status for runtime in await queue.runtimes.list()] == ["offline"]


async def test_runtime_gone_ends_claims_of_a_killed_process_at_once(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        task = await queue.submit(type="code", retry={"strategy": "immediate"})
        worker, _ = await start_worker(store_url, "killed")
        worker.kill()
        await worker.wait()
        assert [outcome.status for outcome in await queue.runtimes.report_gone("killed")] == ["ready"]
        assert (await queue.get(task.id)).attempts == 1
        assert [taken.id for taken in await queue.claim("other")] == [task.id]
