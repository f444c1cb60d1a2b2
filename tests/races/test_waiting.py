"""Concurrent signals, answers and decisions: nothing is lost, and each counts once."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from tests.races.fleet import Stop, errors, handles, stranded, take_all, together, until_blocked

ROUNDS = 15


async def start(queue: Queue) -> tuple[str, str]:
    """A running task: its id and its claim token."""
    task = await queue.submit(type="code")
    (taken,) = await take_all(queue, "worker", 1)
    return task.id, taken.token


async def test_concurrent_signal_and_wait_meet(store_url: str) -> None:
    async with handles(store_url, 2) as (worker, sender):
        for number in range(ROUNDS):
            task_id, token = await start(worker)
            event = f"go-{number}"
            wait, sent = await asyncio.gather(
                worker.waits.wait(token, "go", signal=event), sender.waits.signal(event, number)
            )
            met = wait.status == "met"
            assert sent.freed == (0 if met else 1)
            status = (await worker.get(task_id)).status
            assert status == ("running" if met else "ready")
            if not met:
                (token,) = [taken.token for taken in await worker.claim("worker", start=True)]
            assert (await worker.waits.wait(token, "go", signal=event)).value == number
            await worker.complete(token)
        assert await stranded(worker) == []


async def test_wait_begun_during_a_signal_receives_it(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, sender):
        _, token = await start(worker)
        stop = Stop(sender, "insert_events")
        sending = asyncio.create_task(sender.waits.signal("go", 7))
        await stop.wait()
        waiting = asyncio.create_task(worker.waits.wait(token, "go", signal="go"))
        await until_blocked(worker)
        stop.resume()
        assert (await sending).freed == 0
        assert (await waiting).value == 7


async def test_signal_sent_during_a_wait_ends_it(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, sender):
        task_id, token = await start(worker)
        stop = Stop(worker, "insert_events")
        waiting = asyncio.create_task(worker.waits.wait(token, "go", signal="go"))
        await stop.wait()
        sending = asyncio.create_task(sender.waits.signal("go", 7))
        await until_blocked(sender)
        stop.resume()
        assert (await waiting).status == "open"
        assert (await sending).freed == 1
        assert (await worker.get(task_id)).status == "ready"


async def test_many_concurrent_signals_and_waits_strand_no_task(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 20)
        taken = await take_all(queues[0], "worker", 20)
        await together(
            *(queues[place % 2].waits.wait(each.token, "go", signal="go") for place, each in enumerate(taken)),
            *(queues[2 + place % 2].waits.signal("go", place) for place in range(4)),
        )
        # Every task was there before the first signal: each has had one, or may have one now.
        for each in await queues[0].claim("worker", 20, start=True):
            assert (await queues[0].waits.wait(each.token, "go", signal="go")).status == "met"
        assert (await queues[0].status(fresh=True)).counts == {"running": 20}
        assert await stranded(queues[0]) == []


async def test_two_concurrent_signals_are_both_delivered(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, one, two):
        for number in range(ROUNDS):
            _, token = await start(worker)
            event = f"go-{number}"
            await worker.waits.wait(token, "first", signal=event)
            sent = await together(one.waits.signal(event, 1), two.waits.signal(event, 2))
            assert sorted(each.freed for each in sent) == [0, 1]
            (taken,) = await worker.claim("worker", start=True)
            first = await worker.waits.wait(taken.token, "first", signal=event)
            second = await worker.waits.wait(taken.token, "second", signal=event)
            assert {first.value, second.value} == {1, 2}
            await worker.complete(taken.token)


async def test_two_maintenance_processes_end_a_wait_once(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 3, clock=clock) as (worker, one, two):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.waits.wait(token, "nap", until=clock() + 60)
            clock.advance(60)
            await together(run_once(one.engine, force=True), run_once(two.engine, force=True))
            moves = [
                event.path
                for event in (await worker.tasks.history(task_id)).events
                if event.path[-2:] == ["pending", "ready"]
            ]
            assert len(moves) == 2  # when it was submitted, and when its time had come
            await worker.cancel(task_id)


async def test_concurrent_answer_and_cancel_have_one_outcome(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, ada, bob):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.waits.wait(token, "sure", question="Sure?")
            refused, cancelled = await together(
                errors(ada.approvals.answer(task_id, True)), errors(bob.cancel(task_id))
            )
            assert cancelled == []
            assert refused in ([], ["wrong_state"])
            assert (await worker.get(task_id)).status == "cancelled"
        assert await worker.approvals.list() == []


async def test_only_one_of_two_concurrent_answers_counts(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, ada, bob):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.waits.wait(token, "who", question="Who?")
            assert await errors(ada.approvals.answer(task_id, "ada"), bob.approvals.answer(task_id, "bob")) == [
                "wrong_state"
            ]
            (taken,) = await worker.claim("worker", start=True)
            assert (await worker.waits.wait(taken.token, "who", question="Who?")).value in {"ada", "bob"}
            await worker.complete(taken.token)


async def test_answer_waiting_for_the_expiry_to_commit_is_refused(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (worker, job):
        task_id, token = await start(worker)
        await worker.waits.wait(token, "sure", question="Sure?", timeout_sec=60)
        stop = Stop(job, "save_tasks")
        clock.advance(60)
        ending = asyncio.create_task(run_once(job.engine, force=True))
        await stop.wait()
        answering = asyncio.create_task(errors(worker.approvals.answer(task_id, True)))
        await until_blocked(worker)
        stop.resume()
        await ending
        assert await answering == ["wrong_state"]
        (taken,) = await worker.claim("worker", start=True)
        assert (await worker.waits.wait(taken.token, "sure", question="Sure?", timeout_sec=60)).status == "expired"


async def guard(first: Queue, *others: Queue, **terms: float) -> None:
    """Set a rule that all handles know at once."""
    await first.settings.set("guards", [{"type": "deploy", **terms}])
    for other in others:
        other.engine.settings_cache.forget("default")


@pytest.mark.requirement("R-055", "R-056")
async def test_only_one_of_two_concurrent_decisions_counts(store_url: str) -> None:
    async with handles(store_url, 2) as (ada, bob):
        await guard(ada, bob)
        for _ in range(ROUNDS):
            task = await ada.submit(type="deploy")
            assert await errors(ada.approvals.approve(task.id), bob.approvals.reject(task.id)) == ["wrong_state"]
            decisions = [
                event.verb
                for event in (await ada.tasks.history(task.id)).events
                if event.verb in {"approved", "rejected"}
            ]
            end = "ready" if decisions == ["approved"] else "cancelled"
            assert len(decisions) == 1
            assert (await ada.get(task.id)).status == end


async def test_concurrent_approval_cancel_and_expiry_have_one_outcome(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 3, clock=clock) as (ada, bob, job):
        await guard(ada, bob, job, expire_after_sec=60)
        for _ in range(ROUNDS):
            task = await ada.submit(type="deploy")
            clock.advance(59)
            deciding = errors(ada.approvals.approve(task.id), bob.cancel(task.id))
            clock.advance(1)
            await together(deciding, run_once(job.engine, force=True))
            verbs = [event.verb for event in (await ada.tasks.history(task.id)).events]
            assert len({"approved", "rejected"}.intersection(verbs)) <= 1
            assert (await ada.get(task.id)).status in {"ready", "cancelled"}
            await errors(ada.cancel(task.id))
        assert await ada.approvals.list() == []


async def test_approval_waiting_for_a_change_to_commit_is_refused(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (ada, bob):
        await guard(ada, bob)
        task = await ada.submit(type="deploy")
        (asked,) = await ada.approvals.list()
        stop = Stop(bob, "save_tasks")
        changing = asyncio.create_task(bob.tasks.update(task.id, {"estimated_cost_usd": 500}))
        await stop.wait()
        approving = asyncio.create_task(errors(ada.approvals.approve(task.id, revision=asked.revision)))
        await until_blocked(ada)
        stop.resume()
        await changing
        assert await approving == ["revision_changed"]
        assert (await ada.get(task.id)).status == "waiting_approval"
