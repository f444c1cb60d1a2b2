"""The kept counts of finished tasks stay right in both databases of a move, however much of the log was counted."""

import pytest

from shiftwork import Queue
from shiftwork.databases import move
from shiftwork.observe import kept_counts
from shiftwork.store.store import Store
from tests.databases.test_interrupted_move import killed_at
from tests.databases.test_move import moved


async def count_on(store: Store) -> None:
    """As the maintenance job does."""
    await kept_counts.advance(store)
    await kept_counts.make_whole(store)


async def wrong(queue: Queue) -> list[dict[kept_counts.Tally, int]]:
    """By how much the rows of each database exceed what is kept of them."""
    return [dict((await each.engine.store.read(kept_counts.difference))[1]) for each in queue.databases()]


async def finish(queue: Queue, tasks: int) -> None:
    await queue.submit_many([{"type": "build"}] * tasks)
    for _ in range(tasks):
        (claim,) = await queue.claim("worker", start=True)
        await queue.complete(claim.token)


async def fill(queue: Queue, *, counted: bool) -> None:
    """Finished tasks of two workspaces in the old database and of one in the new, archived, removed and open ones."""
    old, new = (each.engine.store for each in queue.databases())
    for store in (old, new):
        await count_on(store)
    other = queue.in_workspace("other")
    await finish(other, 2)
    await moved(queue.in_workspace("other"), "other", "b")
    await finish(other, 1)
    await finish(queue.in_workspace("staying"), 3)
    await queue.settings.set("purge.mode", "delete")
    await finish(queue, 4)
    assert await queue.control.purge(status=["completed"]) == 4
    await finish(queue, 5)
    await queue.submit(type="build")
    if counted:
        for store in (old, new):
            await count_on(store)


@pytest.mark.parametrize("counted", [False, True])
async def test_counts_are_right_in_both_databases_after_a_move(map_url: str, *, counted: bool) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        await fill(queue, counted=counted)
        old, new = (each.engine.store for each in queue.databases())
        for target, store in (("b", new), ("a", old)):
            await moved(queue, "moving", target)
            for _ in range(2):  # before the job has run, and after it
                found = await queue.status(fresh=True)
                assert (found.counts["completed"], found.tombstones) == (5 + (target == "a"), 4)
                assert (await queue.in_workspace("staying").status(fresh=True)).counts == {"completed": 3}
                assert (await queue.in_workspace("other").status(fresh=True)).counts == {"completed": 3}
                await count_on(store)
            await finish(queue, 1) if target == "b" else None
            await count_on(old)
            await count_on(new)
            assert await wrong(queue) == [{}, {}]


@pytest.mark.parametrize("counted", [False, True])
async def test_counts_are_right_after_a_move_that_is_undone(map_url: str, *, counted: bool) -> None:
    async with Queue.open(map_url, workspace="moving") as queue:
        await fill(queue, counted=counted)
        assert queue.routes is not None
        await killed_at(map_url, "verified")
        for each in queue.databases():
            await count_on(each.engine.store)  # the job of the new database also sees the copy
        await move.undo(queue.routes, "moving")
        for each in queue.databases():
            await count_on(each.engine.store)
        assert await wrong(queue) == [{}, {}]
        assert (await queue.status(fresh=True)).counts == {"completed": 5, "ready": 1}
