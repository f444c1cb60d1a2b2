"""Signals, answers and decisions that come at once: nothing is lost, and each counts once."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.duties.runner import run_once
from shiftwork.testing import MovedClock
from tests.races.fleet import Stop, errors, handles, stranded, take_all, together, until_blocked

ROUNDS = 15


async def start(queue: Queue) -> tuple[str, str]:
    """A running task: its id and its claim token."""
    task = await queue.submit(type="code")
    (taken,) = await take_all(queue, "worker", 1)
    return task.id, taken.token


# -- signals -----------------------------------------------------------------------------------------------------


async def test_a_signal_and_a_wait_at_once_find_each_other(store_url: str) -> None:
    async with handles(store_url, 2) as (worker, sender):
        for number in range(ROUNDS):
            task_id, token = await start(worker)
            event = f"go-{number}"
            wait, sent = await asyncio.gather(worker.wait(token, "go", signal=event), sender.signal(event, number))
            met = wait.status == "met"
            assert sent.freed == (0 if met else 1)
            status = (await worker.get(task_id)).status
            assert status == ("running" if met else "ready")
            if not met:
                (token,) = [taken.token for taken in await worker.claim("worker", start=True)]
            assert (await worker.wait(token, "go", signal=event)).value == number
            await worker.complete(token)
        assert await stranded(worker) == []


async def test_a_wait_begun_while_a_signal_is_under_way_takes_it(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, sender):
        _, token = await start(worker)
        stop = Stop(sender, "insert_events")
        sending = asyncio.create_task(sender.signal("go", 7))
        await stop.wait()
        waiting = asyncio.create_task(worker.wait(token, "go", signal="go"))
        await until_blocked(worker)
        stop.go_on()
        assert (await sending).freed == 0
        assert (await waiting).value == 7


async def test_a_signal_sent_while_a_wait_is_under_way_ends_it(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (worker, sender):
        task_id, token = await start(worker)
        stop = Stop(worker, "insert_events")
        waiting = asyncio.create_task(worker.wait(token, "go", signal="go"))
        await stop.wait()
        sending = asyncio.create_task(sender.signal("go", 7))
        await until_blocked(sender)
        stop.go_on()
        assert (await waiting).status == "open"
        assert (await sending).freed == 1
        assert (await worker.get(task_id)).status == "ready"


async def test_many_signals_and_many_waits_leave_nobody_behind(store_url: str) -> None:
    async with handles(store_url, 4) as queues:
        await queues[0].submit_many([{"type": "code"}] * 20)
        taken = await take_all(queues[0], "worker", 20)
        await together(
            *(queues[place % 2].wait(each.token, "go", signal="go") for place, each in enumerate(taken)),
            *(queues[2 + place % 2].signal("go", place) for place in range(4)),
        )
        # Every task was there before the first signal: each has had one, or may have one now.
        for each in await queues[0].claim("worker", 20, start=True):
            assert (await queues[0].wait(each.token, "go", signal="go")).status == "met"
        assert (await queues[0].status(fresh=True)).counts == {"running": 20}
        assert await stranded(queues[0]) == []


async def test_two_signals_at_once_are_two_signals(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, one, two):
        for number in range(ROUNDS):
            _, token = await start(worker)
            event = f"go-{number}"
            await worker.wait(token, "first", signal=event)
            sent = await together(one.signal(event, 1), two.signal(event, 2))
            assert sorted(each.freed for each in sent) == [0, 1]
            (taken,) = await worker.claim("worker", start=True)
            first = await worker.wait(taken.token, "first", signal=event)
            second = await worker.wait(taken.token, "second", signal=event)
            assert {first.value, second.value} == {1, 2}
            await worker.complete(taken.token)


# -- times and expiry --------------------------------------------------------------------------------------------


async def test_two_duties_end_a_wait_once(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 3, clock=clock) as (worker, one, two):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.wait(token, "nap", until=clock() + 60)
            clock.advance(60)
            await together(run_once(one.engine, force=True), run_once(two.engine, force=True))
            moves = [event.path for event in await worker.history(task_id) if event.path[-2:] == ["pending", "ready"]]
            assert len(moves) == 2  # when it was submitted, and when its time had come
            await worker.cancel(task_id)


async def test_an_answer_and_a_cancellation_at_once_make_one_end(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, ada, bob):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.wait(token, "sure", question="Sure?")
            refused, cancelled = await together(errors(ada.answer(task_id, True)), errors(bob.cancel(task_id)))
            assert cancelled == []
            assert refused in ([], ["wrong_state"])
            assert (await worker.get(task_id)).status == "cancelled"
        assert await worker.approvals() == []


async def test_of_two_answers_at_once_one_counts(store_url: str) -> None:
    async with handles(store_url, 3) as (worker, ada, bob):
        for _ in range(ROUNDS):
            task_id, token = await start(worker)
            await worker.wait(token, "who", question="Who?")
            assert await errors(ada.answer(task_id, "ada"), bob.answer(task_id, "bob")) == ["wrong_state"]
            (taken,) = await worker.claim("worker", start=True)
            assert (await worker.wait(taken.token, "who", question="Who?")).value in {"ada", "bob"}
            await worker.complete(taken.token)


async def test_an_answer_that_waits_for_the_expiry_to_commit_is_refused(postgres_url: str, clock: MovedClock) -> None:
    async with handles(postgres_url, 2, clock=clock) as (worker, duty):
        task_id, token = await start(worker)
        await worker.wait(token, "sure", question="Sure?", timeout_sec=60)
        stop = Stop(duty, "save_tasks")
        clock.advance(60)
        ending = asyncio.create_task(run_once(duty.engine, force=True))
        await stop.wait()
        answering = asyncio.create_task(errors(worker.answer(task_id, True)))
        await until_blocked(worker)
        stop.go_on()
        await ending
        assert await answering == ["wrong_state"]
        (taken,) = await worker.claim("worker", start=True)
        assert (await worker.wait(taken.token, "sure", question="Sure?", timeout_sec=60)).status == "expired"


# -- decisions ---------------------------------------------------------------------------------------------------


async def guard(first: Queue, *others: Queue, **terms: float) -> None:
    """A rule that all of them know at once, not only when they read the settings next."""
    await first.set_setting("guards", [{"type": "deploy", **terms}])
    for other in others:
        other.engine.book.forget("default")


@pytest.mark.requirement("R-055", "R-056")
async def test_of_two_decisions_at_once_one_counts(store_url: str) -> None:
    async with handles(store_url, 2) as (ada, bob):
        await guard(ada, bob)
        for _ in range(ROUNDS):
            task = await ada.submit(type="deploy")
            assert await errors(ada.approve(task.id), bob.reject(task.id)) == ["wrong_state"]
            decisions = [event.verb for event in await ada.history(task.id) if event.verb in {"approved", "rejected"}]
            end = "ready" if decisions == ["approved"] else "cancelled"
            assert len(decisions) == 1
            assert (await ada.get(task.id)).status == end


async def test_an_approval_a_cancellation_and_an_expiry_at_once_make_one_end(store_url: str, clock: MovedClock) -> None:
    async with handles(store_url, 3, clock=clock) as (ada, bob, duty):
        await guard(ada, bob, duty, expire_after_sec=60)
        for _ in range(ROUNDS):
            task = await ada.submit(type="deploy")
            clock.advance(59)
            deciding = errors(ada.approve(task.id), bob.cancel(task.id))
            clock.advance(1)
            await together(deciding, run_once(duty.engine, force=True))
            verbs = [event.verb for event in await ada.history(task.id)]
            assert len({"approved", "rejected"}.intersection(verbs)) <= 1
            assert (await ada.get(task.id)).status in {"ready", "cancelled"}
            await errors(ada.cancel(task.id))
        assert await ada.approvals() == []


async def test_an_approval_that_waits_for_a_change_to_commit_meets_another_revision(postgres_url: str) -> None:
    async with handles(postgres_url, 2) as (ada, bob):
        await guard(ada, bob)
        task = await ada.submit(type="deploy")
        (asked,) = await ada.approvals()
        stop = Stop(bob, "save_tasks")
        changing = asyncio.create_task(bob.update(task.id, {"estimated_cost_usd": 500}))
        await stop.wait()
        approving = asyncio.create_task(errors(ada.approve(task.id, revision=asked.revision)))
        await until_blocked(ada)
        stop.go_on()
        await changing
        assert await approving == ["revision_changed"]
        assert (await ada.get(task.id)).status == "waiting_approval"
