"""A task ended by several callers at once ends once, and one key makes one task."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from tests.races.fleet import Stop, errors, handles, stranded, take_all, together, until_blocked

ENDS = {"completed", "failed", "lease_expired", "cancelled"}


async def ends(queue: Queue, task_id: str) -> list[str]:
    """The events that ended an attempt or the task."""
    return [event.verb for event in (await queue.tasks.history(task_id)).events if event.verb in ENDS]


async def test_concurrent_result_and_reclaim_end_the_attempt_once(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 2, clock=clock) as (worker, reaper):
        for _ in range(10):
            task = await worker.submit(type="code")
            (taken,) = await take_all(worker, "worker", 1)
            clock.advance(91)
            refused, _ = await together(errors(worker.complete(taken.token)), run_once(reaper.engine, force=True))
            accepted = refused == []
            assert refused in ([], ["lease_lost"])
            assert await ends(worker, task.id) == (["completed"] if accepted else ["failed"])
            assert (await worker.get(task.id)).status == ("completed" if accepted else "retrying")
            await errors(worker.cancel(task.id))


async def test_result_waiting_for_reclaim_to_commit_is_refused(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (worker, reaper):
        task = await worker.submit(type="code")
        (taken,) = await take_all(worker, "worker", 1)
        clock.advance(91)
        stop = Stop(reaper, "save_tasks")
        reclaiming = asyncio.create_task(run_once(reaper.engine, force=True))
        await stop.wait()
        completing = asyncio.create_task(errors(worker.complete(taken.token, {"late": True})))
        await until_blocked(worker)
        stop.resume()
        await reclaiming
        assert await completing == ["lease_lost"]
        assert await ends(worker, task.id) == ["failed"]


async def test_reclaim_waiting_for_result_to_commit_takes_nothing(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (worker, reaper):
        task = await worker.submit(type="code")
        (taken,) = await take_all(worker, "worker", 1)
        clock.advance(91)
        stop = Stop(worker, "insert_events")
        completing = asyncio.create_task(worker.complete(taken.token))
        await stop.wait()
        reclaiming = asyncio.create_task(run_once(reaper.engine, force=True))
        await until_blocked(worker)
        stop.resume()
        await completing
        assert (await reclaiming).get("reclaim", {}).get("expired", 0) == 0
        assert await ends(worker, task.id) == ["completed"]


async def test_concurrent_result_and_cancel_have_one_outcome(store_url: str) -> None:
    async with handles(store_url, 2) as (worker, person):
        for _ in range(15):
            task = await worker.submit(type="code")
            (taken,) = await take_all(worker, "worker", 1)
            late, refused = await together(errors(worker.complete(taken.token)), errors(person.cancel(task.id)))
            assert (late, refused) in (([], ["wrong_state"]), (["lease_lost"], []))
            end = "cancelled" if late else "completed"
            assert await ends(worker, task.id) == [end]
            assert (await worker.get(task.id)).status == end


@pytest.mark.requirement("L-063")
async def test_result_submitted_by_many_at_once_is_accepted_once(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        task = await queues[0].submit(type="code")
        (taken,) = await take_all(queues[0], "worker", 1)
        answers = await together(*(queues[i % 4].complete(taken.token, {"copy": i}) for i in range(12)))
        assert sum(1 for answer in answers if not answer.repeated) == 1
        assert await ends(queues[0], task.id) == ["completed"]
        assert (await queues[0].get(task.id)).attempts == 0


@pytest.mark.parametrize("mode", ["same_task", "new_task"])
async def test_retry_does_not_conflict_with_its_own_key(queue: Queue, mode: str, clock: MovedClock) -> None:
    fields = {"type": "code", "idempotency_key": "order-7", "retry": {"mode": mode, "strategy": "immediate"}}
    task = await queue.submit(fields)
    (taken,) = await take_all(queue, "worker", 1)
    failing, again = await asyncio.gather(queue.fail(taken.token, "crash"), queue.submit(fields))
    assert failing.error is None
    assert again.duplicate
    assert (await queue.get(again.id)).root_task_id == task.id
    (retried,) = await queue.claim("worker", start=True)
    await queue.complete(retried.token)
    assert (await queue.submit(fields)).duplicate


async def test_dead_letter_is_retried_next_to_a_newer_task_of_its_key(queue: Queue) -> None:
    fields = {"type": "code", "idempotency_key": "order-7", "max_attempts": 1}
    dead = await queue.submit(fields)
    (taken,) = await take_all(queue, "worker", 1)
    assert (await queue.fail(taken.token, "crash")).status == "dead_lettered"
    newer = await queue.submit(fields)
    assert not newer.duplicate
    assert (await queue.dead_letters.review(dead.id, "retry")).status == "ready"
    assert len(await queue.claim("worker", 5)) == 2


async def test_concurrent_submits_of_one_key_create_one_task(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        for number in range(10):
            answers = await together(
                *(queues[i % 4].submit(type="code", idempotency_key=f"order-{number}") for i in range(12))
            )
            assert len({answer.id for answer in answers}) == 1
            assert sum(1 for answer in answers if not answer.duplicate) == 1
        assert (await queues[0].status()).counts == {"ready": 10}


async def test_batches_sharing_keys_in_opposite_order_do_not_deadlock(store_url: str) -> None:
    keys = [f"order-{number}" for number in range(40)]
    async with handles(store_url, 4) as queues:
        batches = [keys if i % 2 else keys[::-1] for i in range(8)]
        answers = await together(
            *(
                queues[i % 4].submit_many([{"type": "code", "idempotency_key": key} for key in batch])
                for i, batch in enumerate(batches)
            )
        )
        assert len({task.id for batch in answers for task in batch}) == 40
        assert (await queues[0].status()).counts == {"ready": 40}


async def test_key_twice_in_one_batch_is_one_task(queue: Queue) -> None:
    one, other, two = await queue.submit_many(
        [
            {"type": "code", "idempotency_key": "a"},
            {"type": "code", "idempotency_key": "b"},
            {"type": "code", "idempotency_key": "a"},
        ]
    )
    assert (two.id, two.duplicate) == (one.id, True)
    assert not other.duplicate


async def test_submit_waiting_for_the_same_key_returns_that_task(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (first, second):
        stop = Stop(first, "insert_events")
        submitting = asyncio.create_task(first.submit(type="code", idempotency_key="order-7"))
        await stop.wait()
        waiting = asyncio.create_task(second.submit(type="code", idempotency_key="order-7"))
        await until_blocked(first)
        stop.resume()
        made, answer = await submitting, await waiting
        assert (answer.id, answer.duplicate, answer.status) == (made.id, True, "ready")


async def test_concurrent_submits_of_one_id_create_one_task(store_url: str) -> None:
    async with handles(store_url, 3) as queues:
        refused = await errors(*(queue.submit(type="code", id="deploy") for queue in queues))
        assert refused == ["id_in_use"] * 2
        assert (await queues[0].status()).counts == {"ready": 1}


async def test_dag_completed_from_two_sides_completes_once(store_url: str) -> None:
    async with handles(store_url, 2) as (one, two):
        made = await one.submit_dag({"tasks": [{"type": "code"}, {"type": "code"}]})
        left, right = await take_all(one, "worker", 2)
        await together(one.complete(left.token), two.complete(right.token))
        outcome = (await one.events()).events
        assert [e.verb for e in outcome if e.verb.startswith("dag_")] == ["dag_completed"]
        assert (await one.dags.get(made[0].dag_id or "")).status == "completed"
        assert await stranded(one) == []
