"""A parent that continues despite failed subtasks is freed once, under any concurrency of their ends."""

import asyncio
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.reports import Completion
from tests.races.fleet import Stop, handles, stranded, take_all, together, until_blocked

PART = {"type": "part", "max_attempts": 1}


async def parent_of(queue: Queue, count: int) -> tuple[str, list[str], list[str]]:
    """Create a task that waits for this many subtasks; return it, the subtasks and their claims."""
    parent = (await queue.submit(type="code")).id
    (held,) = await take_all(queue, "parent", 1)
    made = await queue.spawn(held.token, [PART] * count, wait=True, failures="return")
    taken = {each.id: each.token for each in await take_all(queue, "worker", count)}
    return parent, [each.id for each in made], [taken[each.id] for each in made]


async def frees(queue: Queue, task: str) -> int:
    return len([event for event in (await queue.tasks.history(task)).events if event.verb == "unblocked"])


async def test_subtasks_ending_in_every_way_at_once_free_their_parent_once(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        first, second, third, fourth = queues
        for _ in range(15):
            parent, parts, tokens = await parent_of(first, 4)
            await together(
                first.complete(tokens[0], {"n": 1}),
                second.fail(tokens[1], "crash", "it broke"),
                third.cancel(parts[2], "not wanted"),
                fourth.fail(tokens[3], "crash", "it broke too"),
            )
            task = await first.get(parent)
            assert task.status == "ready"
            assert sorted(each.task_id for each in task.failed_dependencies) == sorted(parts[1:])
            assert await frees(first, parent) == 1
            await first.cancel(parent)
        assert await stranded(first) == []


async def test_subtask_cancelled_while_it_fails_counts_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        for _ in range(15):
            parent, parts, tokens = await parent_of(one, 2)
            await asyncio.gather(one.fail(tokens[0], "crash"), two.cancel(parts[0]), return_exceptions=True)
            assert (await one.get(parent)).status == "pending"
            await one.complete(tokens[1])
            assert (await one.get(parent)).status == "ready"
            await one.cancel(parent)
        assert await stranded(one) == []


async def test_wait_that_begins_while_the_subtask_fails_is_not_stranded(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (parent, child):
        part = (await child.submit(PART)).id
        (failing,) = await take_all(child, "worker", 1)
        await parent.submit(type="code")
        (held,) = await take_all(parent, "parent", 1)
        stop = Stop(parent, "insert_waits_for")
        waiting = asyncio.create_task(parent.waits.wait_for_tasks(held.token, [part], failures="return"))
        await stop.wait()  # the state of the subtask has been read: running
        ending = asyncio.create_task(child.fail(failing.token, "crash", "it broke"))
        await until_blocked(parent)
        stop.resume()
        await waiting
        await ending
        task = await parent.get(held.id)
        assert (task.status, [each.error for each in task.failed_dependencies]) == ("ready", ["it broke"])
        assert await stranded(parent) == []


async def test_wait_that_begins_after_the_edges_were_flipped_sees_the_failure(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (parent, child):
        part = (await child.submit(PART)).id
        (failing,) = await take_all(child, "worker", 1)
        await parent.submit(type="code")
        (held,) = await take_all(parent, "parent", 1)
        stop = Stop(child, "insert_events")
        ending = asyncio.create_task(child.fail(failing.token, "crash", "it broke"))
        await stop.wait()
        waiting = asyncio.create_task(parent.waits.request(held.token, tasks=[part], failures="return"))
        await until_blocked(parent)
        stop.resume()
        found, _ = await waiting, await ending
        assert (found.status, [each.error for each in found.failed]) == ("running", ["it broke"])


@pytest.mark.parametrize("setting", ["task", "workspace"])
async def test_dependent_that_continues_is_not_stranded_by_concurrent_ends(store_url: str, setting: str) -> None:
    """In each round one handle submits dependents while others fail, complete and cancel what they depend on."""
    rounds = 40
    own: dict[str, Any] = {"settings": {"on_dependency_failed": "continue"}} if setting == "task" else {}
    if setting == "workspace":
        async with Queue.open(store_url) as queue:  # the others read it when they open: none has older settings
            await queue.settings.set("on_dependency_failed", "continue")
    async with handles(store_url, 4) as queues:
        parts = await queues[0].submit_many([PART] * rounds)
        by_id = {each.id: each.token for each in await take_all(queues[0], "worker", rounds)}
        tokens = [by_id[each.id] for each in parts]

        async def submit(queue: Queue) -> None:
            for number in range(rounds):
                near = {parts[number].id, parts[(number + 3) % rounds].id}
                await queue.submit(type="dependent", dependencies=sorted(near), **own)

        async def fail(queue: Queue) -> None:
            for number in range(0, rounds, 3):
                await queue.fail(tokens[number], "crash")

        async def complete(queue: Queue) -> None:
            await queue.batch.complete([Completion(token=tokens[number]) for number in range(1, rounds, 3)])

        async def cancel(queue: Queue) -> None:
            for number in range(2, rounds, 3):
                await queue.cancel(parts[number].id)

        await together(submit(queues[0]), fail(queues[1]), complete(queues[2]), cancel(queues[3]))
        assert await stranded(queues[0]) == []
        assert (await queues[0].status()).types["dependent"] == {"ready": rounds}


async def test_review_concurrent_with_the_parent_changes_nothing_for_it(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        parent, (part,), (token,) = await parent_of(one, 1)
        await one.fail(token, "crash")
        (held,) = await one.claim("parent", types=["code"], start=True)
        wait = one.waits.request(held.token, tasks=[part], failures="return")
        found, _ = await asyncio.gather(wait, two.dead_letters.review(part, "retry"))
        assert found.status == "running"
        assert [each.task_id for each in found.failed] == [part]
        assert (await one.get(parent)).status == "running"
