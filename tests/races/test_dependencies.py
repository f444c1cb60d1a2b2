"""A child becomes ready if, and only if, its last parent completes, under any concurrency."""

import asyncio
import itertools
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.reports import Completion
from tests.races.fleet import Stop, errors, handles, hire, stranded, take_all, together, until_blocked


async def test_two_parents_completing_at_once_unblock_their_child_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        for _ in range(25):
            first, second = await one.submit_many([{"type": "code"}, {"type": "code"}])
            child = await one.submit(type="code", dependencies=[first.id, second.id])
            left, right = await take_all(one, "worker", 2)
            await together(one.complete(left.token), two.complete(right.token))
            assert (await one.get(child.id)).status == "ready"
            assert [e.verb for e in (await one.tasks.history(child.id)).events] == ["submitted", "unblocked"]
            await one.cancel(child.id)


async def test_two_parents_in_one_batch_unblock_their_child(queue: Queue) -> None:
    first, second = await queue.submit_many([{"type": "code"}, {"type": "code"}])
    child = await queue.submit(type="code", dependencies=[first.id, second.id])
    taken = await take_all(queue, "worker", 2)
    await queue.batch.complete([Completion(token=assignment.token) for assignment in taken])
    assert (await queue.get(child.id)).status == "ready"


async def test_repeated_completion_of_a_parent_unblocks_once(queue: Queue) -> None:
    first, second = await queue.submit_many([{"type": "first"}, {"type": "second"}])
    child = await queue.submit(type="code", dependencies=[first.id, second.id])
    await hire(queue, "worker")
    (once,) = await queue.claim("worker", types=["first"], start=True)
    await queue.complete(once.token)
    await queue.complete(once.token)
    await queue.tasks.rerun(first.id)
    (again,) = await queue.claim("worker", types=["first"], start=True)
    await queue.complete(again.token)
    assert (await queue.get(child.id)).status == "pending"
    (last,) = await queue.claim("worker", types=["second"], start=True)
    await queue.complete(last.token)
    assert (await queue.get(child.id)).status == "ready"
    assert await stranded(queue) == []


async def test_child_submitted_while_its_parent_finishes_is_not_stranded(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent = await submitter.submit(type="code")
        (taken,) = await take_all(finisher, "worker", 1)
        stop = Stop(submitter, "insert_tasks")
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await stop.wait()  # the parent's state has been read: running
        finishing = asyncio.create_task(finisher.complete(taken.token))
        await until_blocked(submitter)
        stop.resume()
        child, _ = await submitting, await finishing
        assert (await submitter.get(child.id)).status == "ready"


async def test_child_submitted_while_its_parent_finishes_in_a_batch_is_not_stranded(postgres_url: str) -> None:
    """The batch began before the edge was there, and waits for the parent's lock."""
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent, _ = await submitter.submit_many([{"type": "code"}] * 2)
        taken = await take_all(finisher, "worker", 2)
        stop = Stop(submitter, "insert_tasks")
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await stop.wait()
        finishing = asyncio.create_task(finisher.batch.complete([Completion(token=each.token) for each in taken]))
        await until_blocked(submitter)
        stop.resume()
        child, outcomes = await submitting, await finishing
        assert [outcome.status for outcome in outcomes] == ["completed", "completed"]
        assert (await submitter.get(child.id)).status == "ready"
        assert await stranded(submitter) == []


async def test_child_submitted_while_its_parent_completes_in_a_batch_is_ready(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent, _ = await submitter.submit_many([{"type": "code"}] * 2)
        taken = await take_all(finisher, "worker", 2)
        stop = Stop(finisher, "log_completed")
        finishing = asyncio.create_task(finisher.batch.complete([Completion(token=each.token) for each in taken]))
        await stop.wait()
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await until_blocked(submitter)
        stop.resume()
        child, _ = await submitting, await finishing
        assert child.status == "ready"


async def test_child_submitted_while_its_parent_completes_is_ready(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent = await submitter.submit(type="code")
        (taken,) = await take_all(finisher, "worker", 1)
        stop = Stop(finisher, "insert_events")
        finishing = asyncio.create_task(finisher.complete(taken.token))
        await stop.wait()  # its edges have been flipped, and there was none
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await until_blocked(submitter)
        stop.resume()
        child, _ = await submitting, await finishing
        assert child.status == "ready"


async def test_child_of_a_task_retried_as_new_row_is_not_stranded(postgres_url: str) -> None:
    """The row that completes is not the row that the child names."""
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent = await submitter.submit(type="code", retry={"mode": "new_task", "strategy": "immediate"})
        (taken,) = await take_all(finisher, "worker", 1)
        await finisher.fail(taken.token, "crash")
        (retried,) = await finisher.claim("worker", start=True)
        stop = Stop(submitter, "insert_tasks")
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await stop.wait()
        finishing = asyncio.create_task(finisher.complete(retried.token))
        await until_blocked(submitter)
        stop.resume()
        child, _ = await submitting, await finishing
        assert (await submitter.get(child.id)).status == "ready"


async def test_batches_with_the_same_tasks_in_opposite_order_all_succeed(store_url: str) -> None:
    """Tasks that a batch finds completed are answered as repeated."""
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 60)
        reports = [Completion(token=a.token) for a in await take_all(queues[0], "worker", 60)]
        batches = [reports if number % 2 else reports[::-1] for number in range(4)]
        answers = await together(*(q.batch.complete(b) for q, b in zip(queues, batches, strict=True)))
        assert sum(1 for batch in answers for outcome in batch if not outcome.repeated) == 60
        assert {outcome.error for batch in answers for outcome in batch} == {None}


async def test_concurrent_submits_and_completions_strand_no_child(store_url: str) -> None:
    """In each round two handles submit two children while a third completes the parent."""
    rounds = 150
    async with handles(store_url, 4) as queues:
        await hire(queues[0], "worker")
        parents = await queues[0].submit_many([{"type": "parent"}] * rounds)
        taken = await queues[0].claim("worker", rounds, types=["parent"], start=True)

        async def submit(queue: Queue, shift: int) -> None:
            for number in range(rounds):
                near = {parents[(number + step) % rounds].id for step in (0, shift)}
                await queue.submit(type="child", dependencies=sorted(near))

        async def complete(queue: Queue, order: list[int]) -> None:
            for number in order:
                await queue.complete(taken[number].token)

        halves = list(range(0, rounds, 2)), list(range(1, rounds, 2))
        await together(
            submit(queues[0], 3),
            submit(queues[1], 1),
            complete(queues[2], halves[0]),
            complete(queues[3], halves[1]),
        )
        assert await stranded(queues[0]) == []
        assert (await queues[0].status()).types["child"] == {"ready": 2 * rounds}


async def test_eight_connections_completing_and_cancelling_overlapping_sets_succeed(store_url: str) -> None:
    """Every child waits for parents of several connections, which reach it concurrently."""
    async with handles(store_url, 8) as queues:
        parents = await queues[0].submit_many([{"type": "parent"}] * 32)
        taken = {a.id: a.token for a in await take_all(queues[0], "worker", 32)}
        children = [
            {"type": "child", "dependencies": [parents[i].id for i in range(32) if i % 8 in pair]}
            for pair in itertools.permutations(range(8), 2)
        ]
        await queues[0].submit_many(children)
        mine = [[parents[i].id for i in range(32) if i % 8 == part] for part in range(8)]
        completing = [
            queues[part].batch.complete([Completion(token=taken[id_]) for id_ in reversed(mine[part])])
            for part in range(6)
        ]
        cancelling = [queues[part].batch.cancel(mine[part]) for part in (6, 7)]
        outcomes = [outcome for batch in await together(*completing, *cancelling) for outcome in batch]
        assert [outcome.error for outcome in outcomes] == [None] * 32
        assert await stranded(queues[0]) == []
        assert (await queues[0].status()).types["child"] == {"ready": 30, "cancelled": 26}


async def test_child_of_an_unknown_task_meets_its_concurrent_submit(store_url: str) -> None:
    """Whichever comes first, the child waits for the submitted task."""
    async with handles(store_url, 2) as (one, two):
        await hire(one, "worker")
        for number in range(20):
            name = f"deploy-{number}"
            child, parent = await together(
                one.submit(type="child", dependencies=[name]), two.submit(type="parent", id=name)
            )
            assert (await one.get(child.id)).dependencies == [parent.id]
        assert len(await one.claim("worker", 100)) == 20
        assert await stranded(one) == []


async def test_cycle_closed_by_two_updates_is_refused_for_one(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        left, right = await one.submit_many([{"type": "code"}, {"type": "code"}])
        refused = await errors(
            one.tasks.update(left.id, {"dependencies": [right.id]}),
            two.tasks.update(right.id, {"dependencies": [left.id]}),
        )
        assert refused == ["circular_dependency"]
        assert sorted([(await one.get(t.id)).status for t in (left, right)]) == ["pending", "ready"]


async def test_cycle_closed_by_deadlocked_updates_is_refused_for_one(
    postgres_url: str,
) -> None:
    """Each has locked its own task and wants the other's: the database ends one, which is then repeated."""
    async with handles(postgres_url, 2) as (one, two):
        left, right = await one.submit_many([{"type": "code"}, {"type": "code"}])
        stop = Stop(one, "lock_dependencies")
        first = asyncio.create_task(one.tasks.update(left.id, {"dependencies": [right.id]}))
        await stop.wait()
        second = asyncio.create_task(two.tasks.update(right.id, {"dependencies": [left.id]}))
        await until_blocked(one)
        stop.resume()
        assert await errors(first, second) == ["circular_dependency"]


async def test_cycle_closed_by_two_submits_is_refused_for_one(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        refused = await errors(
            one.submit(type="code", id="left", dependencies=["right"]),
            two.submit(type="code", id="right", dependencies=["left"]),
        )
        assert refused == ["circular_dependency"]


async def test_rerun_concurrent_with_completion_of_its_dependency_is_ready(postgres_url: str) -> None:
    """The end of the dependency decrements the count of the lineage's current row, read after the wait for its lock."""
    async with handles(postgres_url, 2) as (one, two):
        above = await one.submit(type="above")
        below = await two.submit(type="below", dependencies=[above.id])
        await two.cancel(below.id)
        (held,) = await one.claim("worker", start=True, types=["above"])
        stop = Stop(two, "save_tasks")
        rerun = asyncio.create_task(two.tasks.rerun(below.id))
        await stop.wait()
        done = asyncio.create_task(one.complete(held.token))
        await until_blocked(one)
        stop.resume()
        again = await rerun
        await done
        assert (await one.get(again.task_id)).status == "ready"
        assert await stranded(one) == []


@pytest.mark.parametrize("meanwhile", ["retry", "spawn"])
async def test_task_joining_a_dag_while_it_is_cancelled_is_cancelled(postgres_url: str, meanwhile: str) -> None:
    async with handles(postgres_url, 2) as (one, two):
        await one.settings.change({"retry.mode": "new_task", "retry.strategy": "immediate"})
        made = await one.submit_dag({"tasks": [{"type": "code", "key": "a"}, {"type": "code", "dependencies": ["a"]}]})
        (held,) = await one.claim("worker", start=True)
        stop = Stop(one, "insert_events")
        call: Any = one.fail(held.token, "crash") if meanwhile == "retry" else one.spawn(held.token, [{"type": "code"}])
        joining = asyncio.create_task(call)
        await stop.wait()
        cancelling = asyncio.create_task(two.dags.cancel(made[0].dag_id or ""))
        await until_blocked(one)
        stop.resume()
        await joining
        await cancelling
        assert (await one.dags.get(made[0].dag_id or "")).status == "cancelled"
        assert await one.claim("other") == []


async def test_task_depending_on_id_of_a_duplicate_is_not_stranded(store_url: str) -> None:
    """The id arrives with a duplicate while a task starts to depend on it and the kept task ends."""
    async with handles(store_url, 3) as (one, two, three):
        for n in range(25):
            kept = await one.submit(type="code", idempotency_key=f"k{n}")
            (taken,) = await take_all(one, "worker", 1)
            assert taken.id == kept.id
            await together(
                one.submit(type="docs", id=f"c{n}", dependencies=[f"d{n}"]),
                two.submit(type="code", id=f"d{n}", idempotency_key=f"k{n}"),
                three.complete(taken.token),
            )
            found = await one.get(f"c{n}")
            assert (found.status, found.dependencies) == ("ready", [kept.id])
            await one.cancel(f"c{n}")
        assert await stranded(one) == []


async def test_duplicate_adding_a_dependency_as_it_completes_is_ready(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        await one.settings.set("idempotency.on_duplicate", "merge")
        for n in range(25):
            above = await one.submit(type="code")
            kept = await one.submit(type="docs", idempotency_key=f"k{n}")
            await hire(one, "worker")
            (taken,) = await one.claim("worker", types=["code"], start=True)
            await together(
                one.submit(type="docs", idempotency_key=f"k{n}", dependencies=[above.id]), two.complete(taken.token)
            )
            found = await one.get(kept.id)
            assert (found.status, found.dependencies, found.blocked_by) == ("ready", [above.id], [])
            await one.cancel(kept.id)
        assert await stranded(one) == []


async def test_concurrent_tasks_joining_a_dag_are_all_counted(store_url: str) -> None:
    """A single task gets two dependents while it ends."""
    async with handles(store_url, 3) as (one, two, three):
        await hire(one, "worker")
        for n in range(15):
            parent = await one.submit(type="code")
            (taken,) = await one.claim("worker", start=True)
            assert taken.id == parent.id
            await together(
                one.submit(type="code", id=f"a{n}", dependencies=[parent.id]),
                two.submit(type="code", id=f"b{n}", dependencies=[parent.id]),
                three.complete(taken.token),
            )
            dag = await one.dags.get(parent.dag_id or "")
            assert (dag.status, dag.done, dag.total, dag.roots) == ("running", 1, 3, [parent.id])
            for left in await take_all(one, "worker", 2):
                await one.complete(left.token)
            assert (await one.dags.get(parent.dag_id or "")).status == "completed"
        assert await stranded(one) == []


async def test_chain_growing_while_its_head_completes_is_not_stuck(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        await hire(one, "worker")
        for n in range(15):
            head = await one.submit(type="code")
            middle = await one.submit(type="code", dependencies=[head.id])
            (taken,) = await one.claim("worker", start=True)
            await together(one.submit(type="code", id=f"c{n}", dependencies=[middle.id]), two.complete(taken.token))
            assert (await one.get(middle.id)).priority_parts["dependency"] > 0
            for _ in range(2):
                (left,) = await one.claim("worker", start=True)
                await one.complete(left.token)
            assert (await one.dags.get(head.dag_id or "")).status == "completed"
