"""kill -9 of the mover at each of its steps: one owner, nothing lost, and the move can be resumed or undone."""

import asyncio
import os
import sys

import asyncpg
import pytest

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.databases.map_file import read_map
from shiftwork.maintenance import loop
from shiftwork.model.errors import ConflictError
from shiftwork.testing import MovedClock
from tests.databases.test_move import count

BEFORE_SWITCH = ("announced", "guarded", "numbers raised", "copied", "paused", "verified")
AFTER_SWITCH = ("switched", "activated", "old copy removed")


async def killed_at(map_url: str, point: str) -> None:
    """Run the command as a user would, and kill it at this step."""
    command = (sys.executable, "-m", "shiftwork", "--store", map_url, "workspaces", "move", "moving", "--to", "b")
    variables = {**os.environ, "SHIFTWORK_CRASH_POINT": f"move: {point}"}
    process = await asyncio.create_subprocess_exec(*command, env=variables, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == -9, errors.decode()


async def fill(queue: Queue) -> list[str]:
    made = [(await queue.submit(type="build", payload={"n": number})).id for number in range(20)]
    (claim,) = await queue.claim("worker", start=True)
    await queue.complete(claim.token, {"done": True})
    return made


async def ids(queue: Queue) -> list[str]:
    return sorted(task.id for task in (await queue.tasks.list(limit=1000)).tasks)


@pytest.mark.parametrize("point", BEFORE_SWITCH)
async def test_a_mover_killed_before_the_switch_leaves_the_workspace_where_it_was(map_url: str, point: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        assert queue.routes is not None
        made = await fill(queue)
        await killed_at(map_url, point)
        made.append((await queue.submit(type="build")).id)  # no one holds it up
        assert queue.routes.owner("moving") == "a"
        with pytest.raises(ConflictError):
            await move.move(queue.routes, "moving", "b")

        await move.undo(queue.routes, "moving")
        made.append((await queue.submit(type="build")).id)
        assert await ids(queue) == sorted(made)

        await killed_at(map_url, point)
        answer = await move.resume(queue.routes, "moving")
        assert answer is not None
        assert (answer.source, answer.target) == ("a", "b")
        made.append((await queue.submit(type="build")).id)
        assert await ids(queue) == sorted(made)


@pytest.mark.parametrize("point", AFTER_SWITCH)
async def test_a_mover_killed_after_the_switch_leaves_it_to_any_process_to_finish(map_url: str, point: str) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        assert queue.routes is not None
        made = await fill(queue)
        await killed_at(map_url, point)
        made.append((await queue.submit(type="build")).id)
        assert queue.routes.owner("moving") == "b"
        assert await ids(queue) == sorted(made)
        with pytest.raises(ConflictError):
            await move.undo(queue.routes, "moving")
        assert await move.resume(queue.routes, "moving") is None
        assert await ids(queue) == sorted(made)
        for table in ("tasks", "events", "bodies", "attempts"):
            left = await count(map_url, "a", table)
            assert left == 0, table


async def test_maintenance_of_the_new_database_leaves_the_copy_alone(map_url: str) -> None:
    """Tasks that are in place before the switch are found by no job, however much time passes."""
    clock = MovedClock()
    async with Queue.open(map_url, workspace="moving", clock=clock) as queue:
        made = await fill(queue)
        (claim,) = await queue.claim("silent", start=True)
        await queue.submit(type="build", deadline=clock() + 60)
        await queue.submit(type="build", expires_in=60)
        await killed_at(map_url, "copied")
        assert await count(map_url, "b", "tasks") == len(made) - 1  # all but the claimed one and those with a moment
        _, new = queue.databases()
        before = await rows(map_url)
        for _ in range(3):
            clock.advance(40 * 86_400)
            await loop.run_once(new.engine, force=True)
        assert await rows(map_url) == before
        await move.undo(queue.routes, "moving")  # type: ignore[arg-type]  # a map has routes
        assert await count(map_url, "b", "tasks") == 0
        assert claim.task().id in await ids(queue)


async def rows(map_url: str) -> list[str]:
    """The tasks of the new database, whole."""
    connection = await asyncpg.connect(read_map(map_url).databases["b"])
    try:
        return [row[0] for row in await connection.fetch("select t::text from tasks t order by id")]
    finally:
        await connection.close()
