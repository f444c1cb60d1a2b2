"""Finished tasks are counted from the log and not read: the sums are right at every moment, under any load."""

import asyncio

import pytest

from shiftwork import Completion, Queue
from shiftwork.engine import event_log
from shiftwork.engine.event_log import Stretch
from shiftwork.observe import kept_counts
from shiftwork.store.store import Store
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import change, dead_letter, finish, sql, take


async def difference(queue: Queue) -> dict[kept_counts.Tally, int]:
    """Return the difference between the rows and the kept counts, in one snapshot."""
    _, wrong = await queue.engine.store.read(kept_counts.difference)
    return dict(wrong)


async def count_on(queue: Queue) -> None:
    """Count the log, as the maintenance job does."""
    await kept_counts.advance(queue.engine.store)
    await kept_counts.make_whole(queue.engine.store)


@pytest.fixture
async def counted(queue: Queue) -> Queue:
    """A queue whose finished tasks are counted."""
    await count_on(queue)
    mark = await queue.engine.store.read(kept_counts.read_mark)
    assert mark is not None
    assert mark.whole
    return queue


async def test_status_reads_no_finished_task(counted: Queue) -> None:
    await counted.submit_many([{"type": "code", "priority": 5}] * 3)
    await finish(counted)
    await change(counted, "update tasks set priority = 95 where status = 'completed'")
    await count_on(counted)
    await change(counted, "update tasks set priority = 5 where status = 'completed'")
    found = await counted.metrics.read()
    by_tier = {tuple(each.labels.values()): each.value for each in found.samples if each.name == "task_queue_depth"}
    assert by_tier == {("completed", "background"): 1, ("ready", "critical"): 2}
    assert (await counted.status()).counts == {"ready": 2, "completed": 1}
    assert await counted.tasks.count() == {"ready": 2, "completed": 1}


async def test_tasks_that_ended_before_counting_began_are_counted(queue: Queue) -> None:
    await queue.submit_many([{"type": "code"}, {"type": "test"}, {"type": "test"}])
    for _ in range(2):
        await finish(queue)
    before = await queue.status(fresh=True)
    await count_on(queue)
    after = await queue.status(fresh=True)
    assert (after.counts, after.types, after.tiers) == (before.counts, before.types, before.tiers)
    assert await difference(queue) == {}


async def test_every_state_is_counted_without_and_with_sums(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code", "priority": priority} for priority in (5, 20, 50, 70, 90)])
    await finish(queue, "done")
    await take(queue)
    await dead_letter(queue, "careless")
    await queue.cancel((await queue.submit(type="code")).id)
    await queue.submit(type="code", run_at=clock() + 100)
    await queue.submit(type="code", dependencies=[(await queue.submit(type="code")).id])
    plain = await queue.status(fresh=True)
    read = await queue.tasks.count()
    await count_on(queue)
    kept = await queue.status(fresh=True)
    assert (kept.counts, kept.types, kept.tiers, kept.depth) == (plain.counts, plain.types, plain.tiers, plain.depth)
    assert kept.scheduled == plain.scheduled == 1
    assert await queue.tasks.count() == read == plain.counts
    assert await queue.tasks.count(status="pending,completed") == {
        status: plain.counts[status] for status in ("pending", "completed")
    }


async def test_counting_ends_at_the_end_of_the_log(counted: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others work, there is always a new event: a run that followed them would read the log without a pause."""
    settled, looks = event_log.settled, list[Stretch]()

    async def as_the_log_grows(store: Store, after: int, count: int) -> Stretch:
        looks.append(await settled(store, after, count))
        await counted.submit(type="code")
        return looks[-1]

    await counted.submit_many([{"type": "code"}] * 5)
    monkeypatch.setattr(event_log, "settled", as_the_log_grows)
    monkeypatch.setattr(kept_counts, "STRETCH", 2)
    first = await kept_counts.advance(counted.engine.store)
    assert len(looks) > 2, "more than one stretch"
    assert first >= 5
    monkeypatch.setattr(kept_counts, "STRETCH", 100)
    looks.clear()
    assert 0 < await kept_counts.advance(counted.engine.store) < 100
    assert len(looks) == 1
    monkeypatch.undo()
    assert await difference(counted) == {}


async def test_removed_tasks_leave_the_counts_even_before_their_end_is_counted(counted: Queue) -> None:
    await counted.settings.set("purge.mode", "delete")
    await counted.submit_many([{"type": "code", "priority": priority} for priority in (5, 50, 90)])
    for _ in range(2):
        await finish(counted)
    assert await counted.control.purge(status=["completed"]) == 2
    assert await difference(counted) == {}
    found = await counted.status()
    assert (found.counts, found.tombstones) == ({"ready": 1}, 2)
    await count_on(counted)
    assert await sql(counted, "select * from count_changes") == []
    assert await sql(counted, "select * from count_sums where place = 'tasks' and total <> 0") == []
    found = await counted.status()
    assert (found.counts, found.tombstones) == ({"ready": 1}, 2)
    await counted.control.purge(status=["ready"])
    assert await difference(counted) == {}


async def test_archive_is_counted_until_retention_removes_it(counted: Queue, clock: MovedClock) -> None:
    await counted.settings.set("archive_after_sec", 10)
    await counted.settings.set("keep_archived_sec", 100)
    await counted.submit_many([{"type": "code"}] * 3)
    await finish(counted)
    await finish(counted)
    await pass_time(counted, clock, 20)
    assert await difference(counted) == {}
    found = await counted.status()
    assert (found.counts, found.archived, found.completions) == ({"ready": 1}, 2, 2)
    await pass_time(counted, clock, 200)
    assert await difference(counted) == {}
    found = await counted.status()
    assert (found.counts, found.archived, found.tombstones) == ({"ready": 1}, 0, 2)


async def test_cancelled_task_that_is_revived_is_counted_once(counted: Queue) -> None:
    await counted.settings.set("on_dependency_failed", "cancel")
    first = await counted.submit(type="code")
    await counted.submit(type="code", dependencies=[first.id])
    await counted.fail((await take(counted)).token, "crash", retry=False)
    assert (await counted.status()).counts == {"dead_lettered": 1, "cancelled": 1}
    await count_on(counted)
    await counted.dead_letters.review(first.id, "retry", chain=True)
    assert (await counted.status()).counts == {"ready": 1, "pending": 1}
    assert await difference(counted) == {}
    await count_on(counted)
    assert await difference(counted) == {}


async def test_counts_are_right_at_every_moment_while_others_work(counted: Queue) -> None:
    await counted.settings.set("purge.mode", "delete")
    await counted.submit_many([{"type": f"t{n % 3}", "priority": n % 100} for n in range(240)])
    for agent in range(4):
        await counted.agents.register(id=f"w{agent}", max_concurrent_tasks=None)
    working = 4

    async def work(agent: int) -> None:
        nonlocal working
        while held := await counted.claim(f"w{agent}", 7, start=True):
            await counted.batch.complete([Completion(token=each.token) for each in held[1:]])
            await counted.cancel(held[0].id)
        working -= 1

    async def count() -> None:
        while working:
            await count_on(counted)

    async def purge() -> None:
        while working:
            await counted.control.purge(status=["cancelled"])

    async def look() -> list[tuple[dict[kept_counts.Tally, int], int]]:
        found = []
        while working:
            status = await counted.status(fresh=True)
            found.append((await difference(counted), sum(status.counts.values()) + status.tombstones))
        return found

    looks, *_ = await asyncio.gather(look(), count(), purge(), *map(work, range(4)))
    assert looks
    assert [each for each in looks if each != ({}, 240)] == []
    await count_on(counted)
    assert await difference(counted) == {}


async def test_readers_count_all_tasks_themselves_if_no_job_runs(
    counted: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_counts, "TAIL", 3)
    await counted.submit_many([{"type": "code"}] * 3)
    await finish(counted)
    assert await counted.engine.store.read(lambda tx: kept_counts.read(tx, "default")) is None
    assert (await counted.status()).counts == {"ready": 2, "completed": 1}


async def test_each_workspace_has_its_own_counts(counted: Queue) -> None:
    other = counted.in_workspace("other")
    for queue, count in ((counted, 2), (other, 1)):
        await queue.submit_many([{"type": "code"}] * count)
        await finish(queue)
    for _ in range(2):
        assert (await counted.status()).counts == {"ready": 1, "completed": 1}
        assert (await other.status()).counts == {"completed": 1}
        await count_on(counted)


async def test_wrong_sums_are_corrected_once(counted: Queue) -> None:
    await counted.submit(type="code")
    await finish(counted)
    await count_on(counted)
    await change(counted, "update count_sums set total = total + 5")
    assert (await counted.status()).counts == {"completed": 6}
    store = counted.engine.store
    assert any(await asyncio.gather(kept_counts.repair(store), kept_counts.repair(store)))
    assert await difference(counted) == {}
    assert (await counted.status()).counts == {"completed": 1}


async def test_events_are_kept_until_they_are_counted(counted: Queue, clock: MovedClock) -> None:
    await counted.settings.set("keep_events_sec", 10)
    await counted.submit(type="code")
    await finish(counted)
    await change(counted, "update meter_marks set folded_to = 1000")
    clock.advance(100)
    await counted.engine.store.run(lambda tx: tx.all("prune_events", before=clock(), count=100))
    assert (await counted.status()).counts == {"completed": 1}
    await count_on(counted)
    await counted.engine.store.run(lambda tx: tx.all("prune_events", before=clock(), count=100))
    assert await sql(counted, "select seq from events where verb = 'completed'") == []
    assert (await counted.status()).counts == {"completed": 1}
