"""Many tasks are changed by a filter: counted first, page by page, with a count of what was done."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.bulk.model import BulkPage
from shiftwork.model.errors import InputError, NotFound, WrongState
from shiftwork.search.model import TaskFilter
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, events_named, finish, take


async def fill(queue: Queue, count: int = 7, **fields: Any) -> list[str]:
    made = await queue.submit_many([{"type": "code", "title": f"part {n}", **fields} for n in range(count)])
    return [each.id for each in made]


async def test_dry_run_counts_and_changes_nothing(queue: Queue) -> None:
    await fill(queue)
    await fill(queue, 2, type="other")
    await take(queue)
    before = (await queue.events("now")).next
    found = await queue.bulk.cancel({"type": "code"}, dry_run=True)
    assert (found.matched, found.counts, found.changed, found.dry_run) == (7, {"ready": 6, "running": 1}, 0, True)
    assert (await queue.events("now")).next == before


async def test_cancel_by_filter_writes_an_event_for_each_task(queue: Queue) -> None:
    ours = await fill(queue)
    (other,) = await fill(queue, 1, type="other")
    (waiting,) = await fill(queue, 1, type="later", dependencies=[ours[0]])
    done = await queue.bulk.cancel(TaskFilter(status="ready", type="code"), "no longer needed")
    assert (done.matched, done.changed, done.skipped, done.counts) == (7, 7, 0, {"ready": 7})
    assert {(await queue.get(each)).cancel_reason for each in ours} == {"no longer needed"}
    assert (await queue.get(other)).status == "ready"
    assert (await queue.get(waiting)).status == "cancelled"
    assert sorted(str(each) for each in await events_named(queue, "task.cancelled")) == sorted([*ours, waiting])
    again = await queue.bulk.cancel(TaskFilter(status="ready", type="code"))
    assert (again.matched, again.changed) == (0, 0)


async def test_pages_are_bounded_and_can_be_resumed(queue: Queue) -> None:
    ours = await fill(queue, 5)
    first = await queue.bulk.page("cancel", {"type": "code"}, limit=2)
    assert (first.changed, first.next) == (2, ours[1])
    assert [(await queue.get(each)).status for each in ours] == ["cancelled"] * 2 + ["ready"] * 3
    pages: list[BulkPage] = []
    rest = await queue.bulk.cancel({"type": "code"}, progress=pages.append)
    assert (rest.changed, rest.skipped) == (3, 0)
    assert [page.changed for page in pages] == [3]
    second = await queue.bulk.page("cancel", {"type": "code"}, after=first.next, as_of=first.as_of, limit=2)
    assert (second.changed, second.next) == (0, None)


async def test_progress_is_reported_for_every_page(queue: Queue) -> None:
    for _ in range(3):
        await fill(queue, 150)
    pages: list[BulkPage] = []
    done = await queue.bulk.set_priority({"type": "code"}, 7, progress=pages.append)
    assert [page.changed for page in pages] == [200, 200, 50]
    assert (done.changed, done.counts) == (450, {"ready": 450})
    assert {task.priority for task in (await queue.tasks.list(limit=1000)).tasks} == {7}


async def test_tasks_submitted_meanwhile_are_not_changed(queue: Queue, clock: MovedClock) -> None:
    await fill(queue, 3)
    first = await queue.bulk.page("cancel", {"type": "code"}, limit=2)
    clock.advance(1)
    (late,) = await fill(queue, 1)
    last = await queue.bulk.page("cancel", {"type": "code"}, after=first.next, as_of=first.as_of, limit=2)
    assert (last.changed, last.next) == (1, None)
    assert (await queue.get(late)).status == "ready"


async def test_dead_letters_are_retried_by_reason(queue: Queue) -> None:
    buried = [await dead_letter(queue) for _ in range(3)]
    await fill(queue, 1, max_attempts=1)
    await queue.fail((await take(queue)).token, "timeout")
    done = await queue.bulk.retry({"reason": "timeout"}, "the network is back")
    assert (done.changed, done.counts) == (1, {"dead_lettered": 1})
    assert {(await queue.get(each)).status for each in buried} == {"dead_lettered"}
    done = await queue.bulk.retry({"status": "dead_lettered"}, "again")
    assert done.changed == 3
    assert [(await queue.dead_letters.reviews(each))[0].note for each in buried] == ["again"] * 3


async def test_priority_is_changed_and_takes_effect(queue: Queue) -> None:
    first, second = await fill(queue, 2)
    await queue.bulk.set_priority({"search": "part 1"}, 5, note="urgent")
    assert (await queue.get(second)).priority == 5
    assert (await queue.tasks.history(second)).events[-1].reason == "urgent"
    assert (await take(queue)).id == second
    done = await queue.bulk.set_priority({"status": "ready,pending"}, 90)
    assert done.changed == 1
    assert (await queue.get(first)).priority == 90


@pytest.mark.parametrize("mode", ["cancel", "delete"])
async def test_purge_by_filter_follows_its_setting(queue: Queue, mode: str) -> None:
    await queue.settings.set("purge.mode", mode)
    ours = await fill(queue, 3)
    held = (await take(queue)).id
    (other,) = await fill(queue, 1, type="other")
    assert (await queue.bulk.purge({"type": "code"}, dry_run=True)).matched == 2
    assert (await queue.bulk.purge({"type": "code"})).changed == 2
    assert (await queue.get(held)).status == "running"
    assert (await queue.get(other)).status == "ready"
    for each in set(ours) - {held}:
        if mode == "cancel":
            assert (await queue.get(each)).cancel_reason == "purged"
        else:
            with pytest.raises(NotFound):
                await queue.get(each)


async def test_purge_of_completed_tasks_is_skipped_if_purging_cancels(queue: Queue) -> None:
    await fill(queue, 1)
    ended = await finish(queue)
    await queue.settings.set("purge.mode", "cancel")
    done = await queue.bulk.purge({"status": "completed"})
    assert (done.changed, done.skipped) == (0, 1)
    assert done.refused[0].task_id == ended
    await queue.settings.set("purge.mode", "delete")
    assert (await queue.bulk.purge({"status": "completed"})).changed == 1


async def test_task_that_moved_on_is_skipped_and_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the query for a page and its transaction, an agent claims one of its tasks."""
    from shiftwork.search.selection import Selection  # noqa: PLC0415  # for this test alone

    ours, look = await fill(queue, 3), Selection.page

    async def then_claim(self: Selection, *args: Any, **named: Any) -> list[str]:
        found = await look(self, *args, **named)
        claims.append(found)
        return found

    claims: list[list[str]] = []
    monkeypatch.setattr(Selection, "page", then_claim)
    read = queue._executor.read  # type: ignore[attr-defined]  # a local queue

    async def read_then_claim(verb: Any) -> Any:
        answer = await read(verb)
        if claims and len(claims) == 1:
            claims.append([])
            await take(queue)
        return answer

    monkeypatch.setattr(queue._executor, "read", read_then_claim)
    done = await queue.bulk.cancel({"status": "ready"})
    assert (done.changed, done.skipped) == (2, 1)
    assert isinstance(done.refused[0].error, WrongState)
    assert (await queue.get(ours[0])).status == "running"


async def test_bulk_stays_in_its_workspace(queue: Queue) -> None:
    other = queue.in_workspace("other")
    theirs = (await other.submit(type="code")).id
    await fill(queue, 2)
    assert (await queue.bulk.cancel({"type": "code"})).changed == 2
    assert (await other.get(theirs)).status == "ready"


async def test_dag_and_tag_and_time_narrow_a_bulk_change(queue: Queue, clock: MovedClock) -> None:
    dag = (await queue.submit_dag({"tasks": [{"key": "a", "type": "x"}, {"key": "b", "type": "x"}]}))[0].dag_id
    await fill(queue, 2, tags=["blue"])
    clock.advance(100)
    await fill(queue, 3)
    assert (await queue.bulk.cancel({"dag": dag}, dry_run=True)).matched == 2
    assert (await queue.bulk.cancel({"tag": "blue"}, dry_run=True)).matched == 2
    assert (await queue.bulk.cancel({"since": clock()}, dry_run=True)).matched == 3
    assert (await queue.bulk.cancel({"until": clock(), "type": "code"}, dry_run=True)).matched == 2


@pytest.mark.parametrize(
    ("action", "where", "more", "what"),
    [
        ("cancel", {}, {}, "at least one condition"),
        ("cancel", {"colour": "red"}, {}, "unknown field"),
        ("cancel", {"status": "redy"}, {}, "no status 'redy'"),
        ("cancel", {"status": "completed"}, {}, "not possible for tasks that are completed"),
        ("retry", {"status": "ready"}, {}, "not possible for tasks that are ready"),
        ("set_priority", {"type": "code"}, {}, "needs a priority"),
        ("set_priority", {"type": "code"}, {"priority": 101}, "<= 100"),
        ("cancel", {"type": "code"}, {"priority": 3}, "takes no priority"),
        ("cancel", {"search": "!!"}, {}, "needs a letter"),
        ("cancel", {"search": "a\0"}, {}, "NUL"),
        ("explode", {"type": "code"}, {}, "explode"),
        ("cancel", {"type": "code"}, {"after": "nonsense"}, "not a cursor of a page"),
        ("cancel", {"type": "code"}, {"limit": 501}, "<= 500"),
    ],
)
async def test_bad_input_is_refused_and_changes_nothing(
    queue: Queue, action: Any, where: dict[str, Any], more: dict[str, Any], what: str
) -> None:
    await fill(queue, 2)
    with pytest.raises(InputError, match=what):
        await queue.bulk.page(action, where, **more)
    assert await queue.tasks.count() == {"ready": 2}


async def test_unknown_dag_or_parent_is_not_found(queue: Queue) -> None:
    for where in ({"dag": "nope"}, {"parent": "nope"}):
        with pytest.raises(NotFound):
            await queue.bulk.cancel(where, dry_run=True)


async def test_bulk_change_finds_indexed_and_new_tasks(queue: Queue, clock: MovedClock) -> None:
    await fill(queue, 2)
    await pass_time(queue, clock, 1)
    await fill(queue, 2)
    assert (await queue.bulk.cancel({"search": "part"})).changed == 4
