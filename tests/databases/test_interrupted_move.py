"""kill -9 of the mover at each of its steps: one owner, nothing lost, and the move can be resumed or undone."""

import asyncio
import os
import sys

import pytest

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.model.errors import ConflictError
from tests.databases.test_move import count

BEFORE_SWITCH = ("announced", "guarded", "numbers raised", "copied", "paused", "verified")
AFTER_SWITCH = ("switched", "activated", "old copy removed")


async def killed_at(map_url: str, point: str) -> None:
    """Run the command as a user does, and let it die at this step."""
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
