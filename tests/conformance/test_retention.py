"""Retention: finished tasks are archived, archived tasks and old events are removed, and the counts stay right."""

import pytest

from shiftwork import Queue
from shiftwork.model.errors import NotFound
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, sql, submit_dag

DAY = 86_400.0


async def total(queue: Queue) -> int:
    status = await queue.status(fresh=True)
    return sum(status.counts.values()) + status.archived + status.tombstones


async def test_finished_task_is_archived_after_a_month_and_removed_after_another(
    queue: Queue, clock: MovedClock
) -> None:
    await queue.submit(type="code", id="mine")
    task_id = await finish(queue)
    await pass_time(queue, clock, 29 * DAY)
    assert not (await queue.get(task_id)).archived
    await pass_time(queue, clock, 2 * DAY)
    assert (await queue.get(task_id)).archived
    await pass_time(queue, clock, 31 * DAY)
    with pytest.raises(NotFound):
        await queue.get(task_id)
    assert await sql(queue, "select name from names") == []
    assert (await queue.status(fresh=True)).archived == 0
    assert await total(queue) == 1


async def test_name_of_a_removed_task_can_be_used_again(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"archive_after_sec": 60, "keep_archived_sec": 60})
    await queue.submit(type="code", id="mine")
    await finish(queue)
    for _ in range(2):
        await pass_time(queue, clock, 120)
    again = await queue.submit(type="code", id="mine")
    assert (await queue.get(again.id)).status == "ready"


async def test_idempotency_key_of_a_removed_task_can_be_used_again(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"archive_after_sec": 60, "keep_archived_sec": 60})
    first = await queue.submit(type="code", idempotency_key="order-42")
    await finish(queue)
    await pass_time(queue, clock, 120)
    assert (await queue.submit(type="code", idempotency_key="order-42")).id == first.id  # it is archived
    await pass_time(queue, clock, 120)
    assert await sql(queue, "select key from keys") == []
    again = await queue.submit(type="code", idempotency_key="order-42")
    assert again.id != first.id
    assert (await queue.get(again.id)).status == "ready"


async def test_purged_tasks_and_ended_dags_are_removed_too(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.change({"archive_after_sec": 60, "keep_archived_sec": 60, "purge.mode": "delete"})
    await submit_dag(queue, {"a": [], "b": ["a"]})
    await finish(queue)
    await finish(queue)
    await queue.submit(type="junk")
    await queue.control.purge(type="junk")
    for _ in range(3):
        await pass_time(queue, clock, 120)
    for table in ("tombstones", "dags", "archive", "tasks"):
        assert await sql(queue, f"select 1 from {table}") == [], table
    assert await total(queue) == 3


async def test_open_work_is_kept_however_old(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await pass_time(queue, clock, 400 * DAY)
    assert (await queue.get(task_id)).status == "ready"


async def test_events_are_removed_after_a_month(queue: Queue, clock: MovedClock) -> None:
    await queue.submit_many([{"type": "code"}] * 3)
    before = (await queue.events("now")).next
    await pass_time(queue, clock, 29 * DAY)
    assert [event.verb for event in (await queue.events(limit=3)).events] == ["submitted"] * 3
    await pass_time(queue, clock, 2 * DAY)
    await queue.submit(type="code")
    page = await queue.events()
    assert page.events[0].seq > before
    assert [event.verb for event in page.events if event.task_id][-1] == "submitted"


async def test_events_stay_while_one_workspace_keeps_them(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    other = queue.in_workspace("other")
    await other.submit(type="code")
    await other.settings.set("keep_events_sec", None)
    await queue.settings.set("keep_events_sec", 60)
    await pass_time(queue, clock, 40 * DAY)
    assert [event.verb for event in (await queue.events()).events][:1] == ["submitted"]


async def test_null_keeps_tasks_forever(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", None)
    await queue.submit(type="code")
    task_id = await finish(queue)
    await pass_time(queue, clock, 400 * DAY)
    assert not (await queue.get(task_id)).archived
