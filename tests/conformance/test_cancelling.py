"""Cancelling: from where, with what reason, and what becomes of those that wait for it."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.core.errors import LeaseLost, NotFound, VersionConflict, WrongState
from shiftwork.testing import MovedClock
from tests.conformance.steps import REPORT, bury, finish, statuses, submit_dag, take


@pytest.mark.requirement("L-096", "L-099", "L-100", "L-103", "F-068")
async def test_a_cancelled_task_says_when_and_why(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="eng-backend")).id
    assert (await loki.cancel(task_id, "obsolete")).status == "cancelled"
    task = await loki.get(task_id)
    assert (task.status, task.cancel_reason, task.cancelled_at) == ("cancelled", "obsolete", clock())
    assert task.failure_reason == "cancelled"
    assert not await loki.claim("worker")


@pytest.mark.requirement("L-101")
async def test_pending_and_running_work_can_be_cancelled(loki: Queue) -> None:
    running = (await loki.submit(type="eng-backend", payload={"n": 1})).id
    await take(loki)
    pending = (await loki.submit(type="eng-backend", payload={"n": 2})).id
    await loki.cancel_many([running, pending], "obsolete")
    assert [task.id for task in (await loki.tasks(status="cancelled")).tasks] == [running, pending]
    assert (await loki.tasks(status=["ready", "running"])).tasks == []


@pytest.mark.requirement("L-098", "L-104")
async def test_loki_cancels_nothing_that_has_ended(loki: Queue) -> None:
    completed = (await loki.submit(type="code", payload={"n": 1})).id
    await finish(loki)
    buried = await bury(loki, payload={"n": 2})
    cancelled = (await loki.submit(type="code", payload={"n": 3})).id
    await loki.cancel(cancelled)
    for task_id in (completed, buried, cancelled):
        with pytest.raises(WrongState):
            await loki.cancel(task_id)
    with pytest.raises(NotFound):
        await loki.cancel("no-such-task")


@pytest.mark.parametrize("profile", ["standard", "factory", "redis", "coscientist"])
async def test_elsewhere_a_dead_letter_can_be_cancelled(queue: Queue, profile: str) -> None:
    await queue.use_profile(profile)
    task_id = await bury(queue, idempotency_key="k")
    assert (await queue.cancel(task_id)).status == "cancelled"


async def test_a_waiting_retry_can_be_cancelled(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.cancel(task_id)).status == "cancelled"
    assert (await queue.get(task_id)).available_at is None


@pytest.mark.requirement("L-102")
async def test_those_that_wait_are_cancelled_too_each_naming_its_parent(loki: Queue) -> None:
    await loki.set_setting("idempotency.source", "caller")
    ids = await submit_dag(loki, {"a": [], "b": ["a"], "c": ["b"]})
    await loki.cancel(ids["a"], "obsolete")
    reasons = {key: (await loki.get(task_id)).cancel_reason for key, task_id in ids.items()}
    assert reasons == {
        "a": "obsolete",
        "b": f"Parent {ids['a']} cancelled",
        "c": f"Parent {ids['b']} cancelled",
    }


@pytest.mark.parametrize(("setting", "status"), [("cancel", "cancelled"), ("wait", "pending"), ("satisfy", "ready")])
async def test_the_dependents_setting_decides_what_a_cancelled_dependency_means(
    queue: Queue, setting: str, status: str
) -> None:
    await queue.set_setting("on_dependency_cancelled", setting)
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.cancel(ids["a"])
    assert await statuses(queue, ids) == {"a": "cancelled", "b": status}


async def test_a_task_that_was_cancelled_before_has_the_same_effect(queue: Queue) -> None:
    first = (await queue.submit(type="code")).id
    await queue.cancel(first)
    second = (await queue.submit(type="code", dependencies=[first])).id
    assert (await queue.get(second)).cancel_reason == f"Parent {first} cancelled"


@pytest.mark.requirement("A-116")
async def test_work_cancelled_while_it_runs_takes_no_result(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    token = (await take(queue)).token
    await queue.cancel(task_id, "obsolete")
    answer = await queue.heartbeat(token)
    assert (answer.action, answer.reason) == ("cancel", "obsolete")
    with pytest.raises(LeaseLost):
        await queue.complete(token)
    assert (await queue.get(task_id)).status == "cancelled"
    (agent,) = await queue.agents()
    assert agent.current_tasks == 0


@pytest.mark.requirement("L-063", "L-064")
async def test_of_two_completions_at_once_one_takes_effect(loki: Queue, clock: MovedClock, store_url: str) -> None:
    task_id = (await loki.submit(type="code")).id
    token = (await take(loki)).token
    async with await Queue.open(store_url, clock=clock) as second:
        outcomes = await asyncio.gather(
            *(each.complete(token, n, decision_report=REPORT) for n, each in enumerate((loki, second), 1))
        )
    assert sorted(outcome.repeated for outcome in outcomes) == [False, True]
    winner = next(n for n, outcome in enumerate(outcomes, 1) if not outcome.repeated)
    assert (await loki.result(task_id)).data == winner


@pytest.mark.requirement("L-097")
async def test_cancel_and_claim_at_once_have_one_outcome(queue: Queue, clock: MovedClock, store_url: str) -> None:
    task_ids = [made.id for made in await queue.submit_many([{"type": "code"}] * 20)]
    await queue.register_agent(id="worker", max_concurrent_tasks=20)
    async with await Queue.open(store_url, clock=clock) as second:
        claimed, _ = await asyncio.gather(
            queue.claim("worker", 20, start=True), second.cancel_many(task_ids, "obsolete")
        )
    assert {task.status for task in (await queue.tasks()).tasks} == {"cancelled"}
    for assignment in claimed:
        with pytest.raises(LeaseLost):
            await queue.complete(assignment.token)


@pytest.mark.requirement("C-246")
async def test_a_cancel_that_expects_another_version_changes_nothing(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    read = (await queue.get(task_id)).version
    await queue.update(task_id, {"priority": 1})
    with pytest.raises(VersionConflict):
        await queue.cancel(task_id, version=read)
    assert (await queue.get(task_id)).status == "ready"
    assert (await queue.cancel(task_id, version=read + 1)).status == "cancelled"
