"""A child becomes ready when, and only when, its last parent completes, whoever else is at work then."""

import asyncio
import itertools
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.queue.face.working import Report
from tests.races.fleet import Stop, errors, handles, hire, stranded, take_all, together, until_blocked


async def test_two_parents_that_finish_at_once_free_their_child_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        for _ in range(25):
            first, second = await one.submit_many([{"type": "code"}, {"type": "code"}])
            child = await one.submit(type="code", dependencies=[first.id, second.id])
            left, right = await take_all(one, "worker", 2)
            await together(one.complete(left.token), two.complete(right.token))
            assert (await one.get(child.id)).status == "ready"
            assert [e.verb for e in await one.history(child.id)] == ["submitted", "unblocked"]
            await one.cancel(child.id)


async def test_two_parents_in_one_batch_free_their_child(queue: Queue) -> None:
    first, second = await queue.submit_many([{"type": "code"}, {"type": "code"}])
    child = await queue.submit(type="code", dependencies=[first.id, second.id])
    taken = await take_all(queue, "worker", 2)
    await queue.complete_many([Report(assignment.token) for assignment in taken])
    assert (await queue.get(child.id)).status == "ready"


async def test_a_parent_that_completes_again_frees_nobody_twice(queue: Queue) -> None:
    first, second = await queue.submit_many([{"type": "first"}, {"type": "second"}])
    child = await queue.submit(type="code", dependencies=[first.id, second.id])
    await hire(queue, "worker")
    (once,) = await queue.claim("worker", types=["first"], start=True)
    await queue.complete(once.token)
    await queue.complete(once.token)
    await queue.rerun(first.id)
    (again,) = await queue.claim("worker", types=["first"], start=True)
    await queue.complete(again.token)
    assert (await queue.get(child.id)).status == "pending"
    (last,) = await queue.claim("worker", types=["second"], start=True)
    await queue.complete(last.token)
    assert (await queue.get(child.id)).status == "ready"
    assert await stranded(queue) == []


async def test_a_child_submitted_while_its_parent_finishes_is_not_stranded(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent = await submitter.submit(type="code")
        (taken,) = await take_all(finisher, "worker", 1)
        stop = Stop(submitter, "insert_tasks")
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await stop.wait()  # the parent's state has been read: running
        finishing = asyncio.create_task(finisher.complete(taken.token))
        await until_blocked(submitter)
        stop.go_on()
        child, _ = await submitting, await finishing
        assert (await submitter.get(child.id)).status == "ready"


async def test_a_child_submitted_while_its_parent_completes_sees_it_completed(postgres_url: str) -> None:
    async with handles(postgres_url, 2, pool_size=2) as (submitter, finisher):
        parent = await submitter.submit(type="code")
        (taken,) = await take_all(finisher, "worker", 1)
        stop = Stop(finisher, "insert_events")
        finishing = asyncio.create_task(finisher.complete(taken.token))
        await stop.wait()  # its edges have been flipped, and there was none
        submitting = asyncio.create_task(submitter.submit(type="code", dependencies=[parent.id]))
        await until_blocked(submitter)
        stop.go_on()
        child, _ = await submitting, await finishing
        assert child.status == "ready"


async def test_a_child_of_a_task_that_is_retried_as_a_new_row_is_not_stranded(postgres_url: str) -> None:
    """The row that finishes is not the row that the child names."""
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
        stop.go_on()
        child, _ = await submitting, await finishing
        assert (await submitter.get(child.id)).status == "ready"


async def test_batches_that_hold_the_same_tasks_in_opposite_order_all_succeed(store_url: str) -> None:
    """What a batch finds completed it answers as repeated."""
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 60)
        reports = [Report(a.token) for a in await take_all(queues[0], "worker", 60)]
        batches = [reports if number % 2 else reports[::-1] for number in range(4)]
        answers = await together(*(q.complete_many(b) for q, b in zip(queues, batches, strict=True)))
        assert sum(1 for batch in answers for outcome in batch if not outcome.repeated) == 60
        assert {outcome.error for batch in answers for outcome in batch} == {None}


async def test_submitters_against_finishers_leave_nothing_stranded(store_url: str) -> None:
    """Each round a parent, and two children submitted by two handles while a third completes the parent."""
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


async def test_eight_connections_that_finish_and_cancel_overlapping_sets_all_succeed(store_url: str) -> None:
    """Every child waits for parents in the hands of several connections, which meet at it from all sides."""
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
            queues[part].complete_many([Report(taken[id_]) for id_ in reversed(mine[part])]) for part in range(6)
        ]
        cancelling = [queues[part].cancel_many(mine[part]) for part in (6, 7)]
        outcomes = [outcome for batch in await together(*completing, *cancelling) for outcome in batch]
        assert [outcome.error for outcome in outcomes] == [None] * 32
        assert await stranded(queues[0]) == []
        assert (await queues[0].status()).types["child"] == {"ready": 30, "cancelled": 26}


async def test_a_child_of_an_unknown_task_meets_its_submit(store_url: str) -> None:
    """Whichever comes first, the child waits for the task that came."""
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


async def test_a_cycle_closed_by_two_updates_is_refused_for_one(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        left, right = await one.submit_many([{"type": "code"}, {"type": "code"}])
        refused = await errors(
            one.update(left.id, {"dependencies": [right.id]}),
            two.update(right.id, {"dependencies": [left.id]}),
        )
        assert refused == ["circular_dependency"]
        assert sorted([(await one.get(t.id)).status for t in (left, right)]) == ["pending", "ready"]


async def test_a_cycle_closed_by_two_updates_that_block_each_other_is_refused_for_one(
    postgres_url: str,
) -> None:
    """Each has locked its own task and wants the other's: the database ends one, which is then run again."""
    async with handles(postgres_url, 2) as (one, two):
        left, right = await one.submit_many([{"type": "code"}, {"type": "code"}])
        stop = Stop(one, "lock_dependencies")
        first = asyncio.create_task(one.update(left.id, {"dependencies": [right.id]}))
        await stop.wait()
        second = asyncio.create_task(two.update(right.id, {"dependencies": [left.id]}))
        await until_blocked(one)
        stop.go_on()
        assert await errors(first, second) == ["circular_dependency"]


async def test_a_cycle_closed_by_two_submits_is_refused_for_one(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        refused = await errors(
            one.submit(type="code", id="left", dependencies=["right"]),
            two.submit(type="code", id="right", dependencies=["left"]),
        )
        assert refused == ["circular_dependency"]


async def test_a_rerun_and_the_end_of_what_it_waits_for_at_once(postgres_url: str) -> None:
    """Whoever ends the dependency counts down at the row that answers for the lineage after the wait."""
    async with handles(postgres_url, 2) as (one, two):
        above = await one.submit(type="above")
        below = await two.submit(type="below", dependencies=[above.id])
        await two.cancel(below.id)
        (held,) = await one.claim("worker", start=True, types=["above"])
        stop = Stop(two, "save_tasks")
        rerun = asyncio.create_task(two.rerun(below.id))
        await stop.wait()
        done = asyncio.create_task(one.complete(held.token))
        await until_blocked(one)
        stop.go_on()
        again = await rerun
        await done
        assert (await one.get(again.task_id)).status == "ready"
        assert await stranded(one) == []


@pytest.mark.parametrize("meanwhile", ["retry", "spawn"])
async def test_what_joins_a_dag_while_it_is_cancelled_is_cancelled_too(postgres_url: str, meanwhile: str) -> None:
    async with handles(postgres_url, 2) as (one, two):
        await one.change_settings({"retry.mode": "new_task", "retry.strategy": "immediate"})
        made = await one.submit_dag({"tasks": [{"type": "code", "key": "a"}, {"type": "code", "dependencies": ["a"]}]})
        (held,) = await one.claim("worker", start=True)
        stop = Stop(one, "insert_events")
        call: Any = one.fail(held.token, "crash") if meanwhile == "retry" else one.spawn(held.token, [{"type": "code"}])
        joining = asyncio.create_task(call)
        await stop.wait()
        cancelling = asyncio.create_task(two.cancel_dag(made[0].dag_id or ""))
        await until_blocked(one)
        stop.go_on()
        await joining
        await cancelling
        assert (await one.dag(made[0].dag_id or "")).status == "cancelled"
        assert await one.claim("other") == []


async def test_a_task_that_waits_for_the_id_of_a_duplicate_is_not_stranded(store_url: str) -> None:
    """The id comes with a duplicate, at the moment at which a task starts to wait for it and the kept one ends."""
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


async def test_a_duplicate_that_brings_a_dependency_meets_the_end_of_it(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        await one.set_setting("idempotency.on_duplicate", "merge")
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


async def test_tasks_that_join_a_dag_at_once_are_all_counted(store_url: str) -> None:
    """A lone task gets two dependents at the moment at which it ends."""
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
            dag = await one.dag(parent.dag_id or "")
            assert (dag.status, dag.done, dag.total, dag.roots) == ("running", 1, 3, [parent.id])
            for left in await take_all(one, "worker", 2):
                await one.complete(left.token)
            assert (await one.dag(parent.dag_id or "")).status == "completed"
        assert await stranded(one) == []


async def test_a_chain_that_grows_while_its_head_ends_is_not_stuck(store_url: str) -> None:
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
            assert (await one.dag(head.dag_id or "")).status == "completed"
