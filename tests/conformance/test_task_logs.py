"""A task's log: kept in order under its claim, bounded, read by a cursor, and deleted with a purged task."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, LeaseLost, NotFound
from shiftwork.task_logs import operations
from shiftwork.task_logs.model import MAX_LINE, MAX_LINES, MAX_LOG, LogLine
from shiftwork.testing import MovedClock
from tests.conformance.steps import sql, take


async def lines(queue: Queue, task_id: str) -> list[LogLine]:
    return (await queue.tasks.logs(task_id)).lines


async def texts(queue: Queue, task_id: str) -> list[str]:
    return [line.text for line in await lines(queue, task_id)]


async def held(queue: Queue, agent: str = "worker") -> tuple[str, str]:
    """Start a task; return its id and its claim token."""
    made = await queue.submit(type="code")
    return made.id, (await take(queue, agent)).token


async def test_lines_are_kept_in_order_with_level_time_and_attempt(queue: Queue, clock: MovedClock) -> None:
    task, token = await held(queue)
    await queue.claims.log(token, [{"text": "one"}, {"text": "two", "level": "warning", "at": clock() - 5}])
    await queue.claims.log(token, [{"text": "three", "level": "debug"}])
    found = await lines(queue, task)
    assert [(line.text, line.level, line.at - clock(), line.kind) for line in found] == [
        ("one", "info", 0, "log"),
        ("two", "warning", -5, "log"),
        ("three", "debug", 0, "log"),
    ]
    assert {(line.fence, line.agent_id) for line in found} == {(1, "worker")}


async def test_messages_of_agents_are_in_the_log(queue: Queue) -> None:
    task, token = await held(queue)
    await queue.claims.message(token, "tool_call", "ls", {"tool": "bash"})
    await queue.claims.log(token, [{"text": "between"}])
    await queue.claims.message(token, "error", "no such file")
    found = [(line.kind, line.level, line.text, line.data) for line in await lines(queue, task)]
    assert found == [
        ("tool_call", "info", "ls", {"tool": "bash"}),
        ("log", "info", "between", None),
        ("error", "error", "no such file", None),
    ]


async def test_lines_of_one_call_are_one_event(queue: Queue) -> None:
    task, token = await held(queue)
    await queue.claims.log(token, [{"text": str(n)} for n in range(100)])
    assert [event.verb for event in (await queue.tasks.history(task)).events].count("message") == 1
    assert await texts(queue, task) == [str(n) for n in range(100)]


async def test_late_lines_are_refused(queue: Queue) -> None:
    task, token = await held(queue)
    await queue.complete(token)
    with pytest.raises(LeaseLost):
        await queue.claims.log(token, [{"text": "late"}])
    assert await texts(queue, task) == []


async def test_lines_of_an_older_attempt_are_refused(queue: Queue) -> None:
    await queue.settings.set("retry.strategy", "immediate")
    task, old = await held(queue)
    await queue.claims.log(old, [{"text": "first"}])
    await queue.fail(old, "crash")
    new = (await take(queue)).token
    with pytest.raises(LeaseLost):
        await queue.claims.log(old, [{"text": "stale"}])
    await queue.claims.log(new, [{"text": "second"}])
    assert [(line.fence, line.text) for line in await lines(queue, task)] == [(1, "first"), (2, "second")]


async def test_each_claim_of_a_batch_has_its_own_outcome(queue: Queue) -> None:
    first, one = await held(queue)
    second, two = await held(queue, "other")
    await queue.complete(two)
    outcomes = await queue.batch.log(
        [
            {"token": one, "lines": [{"text": "kept"}]},
            {"token": two, "lines": [{"text": "late"}]},
            {"token": "nothing.1", "lines": [{"text": "lost"}]},
        ]
    )
    assert [None if each.error is None else each.error.code for each in outcomes] == [None, "lease_lost", "not_found"]
    assert (await texts(queue, first), await texts(queue, second)) == (["kept"], [])


async def test_length_of_a_log_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_LOG", 25)
    task, token = await held(queue)
    await queue.claims.log(token, [{"text": "x" * 9}, {"text": "y" * 9}])
    await queue.claims.log(token, [{"text": "z" * 9, "level": "error"}, {"text": "never"}])
    await queue.claims.log(token, [{"text": "never"}])
    assert await texts(queue, task) == ["x" * 9, "y" * 9, operations.FULL]
    assert f"{MAX_LOG:,} characters" in operations.FULL


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([], "lines"),
        ([{"text": "x"}] * (MAX_LINES + 1), "lines"),
        ([{"text": "x" * (MAX_LINE + 1)}], "lines[0].text"),
        ([{"text": "x", "level": "loud"}], "lines[0].level"),
        ([{"text": "x\0y"}], "lines[0].text"),
        ([{"words": "x"}], "lines[0]"),
    ],
    ids=["none", "too many", "too long", "level", "NUL", "field"],
)
async def test_unusable_lines_are_refused_and_nothing_is_kept(queue: Queue, given: Any, where: str) -> None:
    task, token = await held(queue)
    with pytest.raises(InputError) as refused:
        await queue.claims.log(token, given)
    assert (refused.value.where or "").startswith(where.partition("[")[0])
    assert await texts(queue, task) == []


async def test_pages_continue_from_next_and_end_with_the_task(queue: Queue) -> None:
    task, token = await held(queue)
    for number in range(3):
        await queue.claims.log(token, [{"text": f"{number}a"}, {"text": f"{number}b"}])
    page = await queue.tasks.logs(task, limit=2)
    assert ([line.text for line in page.lines], page.status, page.ended) == (["0a", "0b", "1a", "1b"], "running", False)
    await queue.complete(token)
    rest = await queue.tasks.logs(task, after=page.next)
    assert ([line.text for line in rest.lines], rest.status, rest.ended) == (["2a", "2b"], "completed", True)
    assert (await queue.tasks.logs(task, limit=2)).ended is False, "there are more lines"


async def test_follower_gets_each_line_once_until_the_end(queue: Queue) -> None:
    task, token = await held(queue)
    seen: list[str] = []
    came = asyncio.Event()

    async def follow() -> None:
        async for line in queue.tasks.follow_logs(task):
            seen.append(line.text)
            came.set()

    following = asyncio.create_task(follow())
    await queue.claims.log(token, [{"text": "one"}])
    await came.wait()
    await queue.claims.log(token, [{"text": "two"}])
    await queue.complete(token)
    await asyncio.wait_for(following, 30)
    assert seen == ["one", "two"]


async def test_waiting_ends_with_the_task_also_without_lines(queue: Queue) -> None:
    task, token = await held(queue)
    waiting = asyncio.create_task(queue.tasks.logs(task, wait=25))
    await queue.complete(token)
    page = await asyncio.wait_for(waiting, 20)
    assert (page.lines, page.ended) == ([], True)


@pytest.mark.parametrize("task", ["nothing", "task_01M7P64ZV4E07VX0K0EDGER6Y0"])
async def test_log_of_an_unknown_task_is_not_found(queue: Queue, task: str) -> None:
    with pytest.raises(NotFound):
        await queue.tasks.logs(task)


async def test_log_is_not_seen_from_another_workspace(queue: Queue) -> None:
    task, token = await held(queue)
    await queue.claims.log(token, [{"text": "secret"}])
    with pytest.raises(NotFound):
        await queue.in_workspace("other").tasks.logs(task)


async def test_log_is_deleted_with_its_task(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    task, token = await held(queue)
    await queue.claims.log(token, [{"text": "secret"}])
    await queue.claims.message(token, "text", "secret")
    await queue.release(token)
    assert await queue.control.purge(type="code") == 1
    with pytest.raises(NotFound):
        await queue.tasks.logs(task)
    assert await sql(queue, "select seq from events where verb = 'message'") == []
    assert await sql(queue, "select * from log_sizes") == []
