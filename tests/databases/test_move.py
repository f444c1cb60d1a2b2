"""A workspace moves to another database while it is in use: nothing is lost, claims and cursors hold, one owner."""

import asyncio
from collections import Counter

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.databases.map_file import read_map
from shiftwork.databases.model import Moved
from shiftwork.model.errors import ConflictError, InputError, LeaseLost, NotFound, WorkspaceMoved
from shiftwork.observe.model import Sample
from shiftwork.testing import MovedClock
from tests.worker.steps import until


async def moved(queue: Queue, workspace: str, to: str) -> Moved:
    assert queue.routes is not None
    return await move.move(queue.routes, workspace, to)


async def count(url: str, database: str, table: str) -> int:
    connection = await asyncpg.connect(read_map(url).databases[database])
    try:
        return int(await connection.fetchval(f"select count(*) from {table}"))  # a name of ours
    finally:
        await connection.close()


async def test_a_workspace_is_whole_after_its_move(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving", clock=MovedClock()) as queue:
        first = await queue.submit(type="build", payload={"n": 1}, title="the first one", tags=["red"])
        second = await queue.submit(type="build", payload={"n": 2}, dependencies=[first.id])
        (claim,) = await queue.claim("worker", start=True)
        await queue.complete(claim.token, {"done": True})
        before = [await queue.get(task.id) for task in (first, second)]
        history = (await queue.tasks.history(first.id)).events
        token = await queue.tokens.create("ci", ["read"])

        answer = await moved(queue, "moving", "b")

        assert (answer.source, answer.target, answer.generation) == ("a", "b", 1)
        assert [await queue.get(task.id) for task in (first, second)] == before
        assert (await queue.tasks.history(first.id)).events == history
        assert [task.id for task in (await queue.tasks.list(search="first")).tasks] == [first.id]
        assert [each.id for each in await queue.tokens.list()] == [token.id]
        assert [(each.name, each.database) for each in await queue.workspaces.list()] == [("moving", "b")]
    for table in ("tasks", "events", "bodies", "attempts", "workspaces", "tokens"):
        left = await count(map_url, "a", table)
        assert left == 0, table


async def test_a_claim_is_completed_under_its_fence_after_the_move(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        task = await queue.submit(type="build")
        (claim,) = await queue.claim("worker", start=True)
        await moved(queue, "moving", "b")
        await queue.heartbeat(claim.token)
        await queue.complete(claim.token, {"done": True})
        assert (await queue.get(task.id)).status == "completed"


async def test_a_cursor_misses_nothing_and_sees_nothing_twice_across_moves(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        cursor, seen, made = 0, Counter[str](), []
        for target in ("b", "a", "b", None):
            made.append((await queue.submit(type="build")).id)
            if target is not None:
                await moved(queue, "moving", target)
            made.append((await queue.submit(type="build")).id)
            page = await queue.events(cursor, verb="submitted")
            cursor = page.next
            seen.update(event.task_id for event in page.events if event.task_id is not None)
        assert seen == Counter(made)


async def test_other_workspaces_of_the_new_database_keep_their_events_and_meters(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        other = queue.in_workspace("other")
        for _ in range(3):
            await queue.submit(type="build")
            await other.submit(type="build")
        await moved(other, "other", "b")
        for _ in range(4):
            await other.submit(type="build")
        cursor = (await other.events()).next
        await moved(queue, "moving", "b")
        await other.submit(type="build")
        page = await other.events(cursor, verb="submitted")
        assert len(page.events) == 1

        def created(found: list[Sample]) -> float:
            return sum(each.value for each in found if each.name == "shiftwork_tasks_created_total")

        assert created((await other.metrics.read()).samples) == 8
        assert created((await queue.metrics.read()).samples) == 3


async def test_workers_continue_while_their_workspace_moves(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        stop = asyncio.Event()
        submitted: list[str] = []
        completed: list[str] = []

        async def submit() -> None:
            while not stop.is_set():
                submitted.append((await queue.submit(type="build", payload={"n": len(submitted)})).id)

        async def work(name: str) -> None:
            while True:
                claims = await queue.claim(name, wait=0.2, start=True)
                for claim in claims:
                    await queue.complete(claim.token, {"done": True})
                    completed.append(claim.task().id)
                if not claims and stop.is_set():
                    return

        running = [asyncio.create_task(each) for each in (submit(), work("one"), work("two"), work("three"))]
        await until(lambda: completed != [])
        for target in ("b", "a"):
            before = len(completed)
            await moved(queue, "moving", target)
            await until(lambda before=before: len(completed) >= before + 20)  # type: ignore[misc]  # mypy cannot type the default
        stop.set()
        await asyncio.gather(*running)
        assert Counter(completed) == Counter(submitted)
        assert (await queue.status()).counts["completed"] == len(submitted)


async def test_a_process_that_does_not_know_of_the_move_cannot_write_to_the_old_place(map_url: str) -> None:
    old = read_map(map_url).databases["a"]
    async with Queue.open(map_url, workspace="moving") as queue, Queue.open(old, workspace="moving") as stale:
        task = await stale.submit(type="build")
        (claim,) = await stale.claim("worker", start=True)
        await moved(queue, "moving", "b")
        for write in (stale.submit(type="build"), stale.tokens.create("ci", ["read"])):
            with pytest.raises(WorkspaceMoved):
                await write
        with pytest.raises((NotFound, LeaseLost, WorkspaceMoved)):
            await stale.complete(claim.token, {})
        assert await count(map_url, "a", "tasks") == 0
        await queue.complete(claim.token, {})
        assert (await queue.get(task.id)).status == "completed"


async def test_a_workspace_that_comes_back_takes_work_where_it_was_refused(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        await queue.submit(type="build")
        for target in ("b", "a", "b", "a"):
            await moved(queue, "moving", target)
            await queue.submit(type="build")
        claims = [claim for number in range(6) for claim in await queue.claim(f"worker-{number}")]
        assert len(claims) == 5
        assert {each.database for each in await queue.workspaces.list()} == {"a"}


async def test_a_claim_that_waits_gets_work_that_comes_after_the_move(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue, Queue.open(map_url, workspace="moving") as mover:
        await queue.submit(type="other")
        waiting = asyncio.create_task(queue.claim("worker", types=["build"], wait=25))
        await until(lambda: bool(queue.executor.shared.claim_waiters._waiters))
        await moved(mover, "moving", "b")
        task = await mover.submit(type="build")
        async with asyncio.timeout(10):
            (claim,) = await waiting
        assert claim.task().id == task.id


async def test_an_event_trigger_fires_once_for_an_event_just_before_the_move(map_url: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        on = {"kind": "event", "events": ["task.completed"], "where": {"type": "build"}}
        await queue.triggers.save("again", on=on, task={"type": "next"})
        task = await queue.submit(type="build")
        (claim,) = await queue.claim("worker", start=True)
        await queue.complete(claim.token, {})
        await moved(queue, "moving", "b")
        page = await queue.tasks.list(type="next")
        assert len(page.tasks) == 1, task


@pytest.mark.parametrize("target", ["a", "nowhere"])
async def test_a_move_to_where_it_is_or_to_no_database_is_refused(map_url: str, target: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        await queue.submit(type="build")
        with pytest.raises((ConflictError, InputError)):
            await moved(queue, "moving", target)


async def test_events_of_the_new_database_with_the_same_numbers_stay(map_url: str) -> None:
    async with Queue.open(read_map(map_url).databases["b"], workspace="native") as native:
        for _ in range(5):
            await native.submit(type="build")
    async with Queue.open(map_url, workspace="moving") as queue:
        for _ in range(5):
            await queue.submit(type="build")
        await moved(queue, "moving", "b")
        for name in ("native", "moving"):
            page = await queue.in_workspace(name).events(verb="submitted")
            assert len(page.events) == 5, name
