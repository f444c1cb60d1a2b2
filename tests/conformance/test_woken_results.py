"""Waiters for results are woken by the end of their task: they cost no statement while nothing ends, and miss none."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue, Result, ResultTimeout, TaskCancelled
from shiftwork.engine import result_waiters
from shiftwork.model.errors import StoreClosed, StoreReadOnly
from shiftwork.store.store import Store, Verb
from shiftwork.store.wakes import LocalWakes
from tests.conformance.steps import finish, sql, take

WAITERS = 1000
Run = Callable[[Verb[Any]], Awaitable[Any]]


class Counted:
    """Counts the transactions of a store, reads included."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        for name in ("run", "read"):
            monkeypatch.setattr(store, name, self._counting(name, getattr(store, name)))

    def _counting(self, name: str, call: Run) -> Run:
        def counted(verb: Verb[Any]) -> Awaitable[Any]:
            self.calls[name] += 1
            return call(verb)

        return counted


@pytest.fixture
async def other(queue: Queue, store_url: str) -> AsyncIterator[Queue]:
    """The same queue as in another process, with a separate store."""
    async with Queue.open(store_url, clock=queue.engine.store.now, seed=8) as opened:
        yield opened


async def parked(queue: Queue, count: int) -> None:
    """Wait until this many callers wait, each after its first query."""
    waiters = queue.executor.shared.result_waiters
    while waiters.parked < count:  # noqa: ASYNC110  # only a test wants to know
        await asyncio.sleep(0)


async def waiting_for(queue: Queue, *task_ids: str) -> list[asyncio.Task[Result]]:
    calls = [asyncio.create_task(queue.result(task_id, wait=60)) for task_id in task_ids]
    await parked(queue, len(calls))
    return calls


async def test_thousand_waiters_cost_nothing_until_their_task_ends(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waiters, "FIRST_LOOKS_SEC", ())
    made = await queue.submit_many([{"type": "code", "id": f"t{number}"} for number in range(WAITERS)])
    calls = await waiting_for(queue, *(task.id for task in made))
    counted = Counted(queue.engine.store, monkeypatch)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (counted.calls, sum(call.done() for call in calls)) == ({}, 0)
    taken = await take(queue)
    counted.calls.clear()
    await queue.complete(taken.token, "mine")
    (mine,) = [call for call, task in zip(calls, made, strict=True) if task.id == taken.id]
    assert (await mine).data == "mine"
    assert counted.calls["read"] == 1  # the look of its only waiter
    assert sum(call.done() for call in calls) == 1
    await _give_up(calls)


async def test_waiter_of_another_process_is_woken(queue: Queue, other: Queue) -> None:
    made = await queue.submit_many([{"type": "code"}] * 2)
    calls = await waiting_for(other, *(task.id for task in made))
    done = {await finish(queue, data=number): number for number in range(2)}
    assert [(await call).data for call in calls] == [done[task.id] for task in made]


@pytest.mark.parametrize("how", ["cancel", "fail", "review"])
async def test_every_end_wakes_waiters_of_all_processes(queue: Queue, other: Queue, how: str) -> None:
    made = await queue.submit(type="code", max_attempts=1)
    if how == "review":
        await queue.fail((await take(queue)).token, "agent_error")
        await queue.dead_letters.review(made.id, "retry")
    calls = [*await waiting_for(queue, made.id), *await waiting_for(other, made.id)]
    if how == "cancel":
        await queue.cancel(made.id)
    elif how == "fail":
        await queue.fail((await take(queue)).token, "agent_error")
    else:
        await finish(queue)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    expected = {"cancel": "TaskCancelled", "fail": "TaskFailed", "review": "Result"}[how]
    assert [type(end).__name__ for end in ends] == [expected] * 2


async def test_task_that_ends_between_the_query_and_the_wait_is_not_missed(
    queue: Queue, other: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is completed right after the read of a waiter, before it waits. Shared queries do not count."""
    waiter = asyncio.current_task()
    for process in (queue, other):
        for place in range(2):
            made = await queue.submit(type="code")
            read, looks = process.engine.store.read, 0

            async def end_after(verb: Verb[Any], /, read: Any = read, place: int = place) -> Any:
                nonlocal looks
                answer = await read(verb)
                if asyncio.current_task() is waiter:
                    looks += 1
                    if looks == place + 1:
                        await finish(queue, data="in between")
                return answer

            with monkeypatch.context() as patched:
                patched.setattr(process.engine.store, "read", end_after)
                assert (await process.result(made.id, wait=60)).data == "in between"


async def test_completions_are_announced_to_others_only_while_someone_waits(queue: Queue, other: Queue) -> None:
    made = await queue.submit(type="code")
    assert await sql(queue, "select * from result_listeners") == []
    (call,) = await waiting_for(other, made.id)
    assert len(await sql(queue, "select * from result_listeners")) == 1
    await finish(queue)
    await call
    await other.close()
    assert await sql(queue, "select * from result_listeners") == []


async def test_one_query_finds_all_ends_whose_announcement_was_lost(
    queue: Queue, other: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_waiters, "FIRST_LOOKS_SEC", ())
    monkeypatch.setattr(result_waiters, "REPAIR_SEC", 0.2)
    monkeypatch.setattr(LocalWakes, "announce", lambda *_: None)  # nothing is heard
    made = await queue.submit_many([{"type": "code"}] * 3)
    calls = await waiting_for(other, *(task.id for task in made))
    for _ in made:
        await finish(queue, data="found")
    assert [(await call).data for call in calls] == ["found"] * 3


async def test_read_only_store_still_answers(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await queue.submit(type="code")
    run = queue.engine.store.run

    async def refuse(_verb: Verb[Any], /) -> Any:
        raise StoreReadOnly("the file is read-only")

    with monkeypatch.context() as patched:
        patched.setattr(queue.engine.store, "run", refuse)
        (call,) = await waiting_for(queue, made.id)
    assert queue.engine.store.run == run
    await finish(queue, data="seen")
    assert (await call).data == "seen"


async def test_closing_ends_the_wait(queue: Queue, other: Queue) -> None:
    made = await queue.submit(type="code")
    (call,) = await waiting_for(other, made.id)
    await other.close()
    with pytest.raises(StoreClosed):
        await call
    with pytest.raises(StoreClosed):
        await other.result(made.id, wait=5)


async def test_waiter_that_gives_up_leaves_nothing_behind(queue: Queue) -> None:
    made = await queue.submit(type="code")
    calls = await waiting_for(queue, made.id, made.id)
    calls[0].cancel()
    with pytest.raises(ResultTimeout):
        await queue.result(made.id, wait=0.01)
    assert queue.executor.shared.result_waiters.parked == 1
    await queue.cancel(made.id)
    with pytest.raises(TaskCancelled):
        await calls[1]
    assert queue.executor.shared.result_waiters.parked == 0


async def _give_up(calls: list[asyncio.Task[Result]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
