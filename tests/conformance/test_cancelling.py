"""Cancelling: allowed states, reasons, and the effect on dependents."""

import asyncio

import pytest

from shiftwork import Queue
from shiftwork.model.errors import LeaseLost, NotFound, VersionConflict, WrongState
from shiftwork.testing import MovedClock
from tests.conformance.steps import REPORT, dead_letter, finish, statuses, submit_dag, take


@pytest.mark.requirement("L-096", "L-099", "L-100", "L-103", "F-068")
async def test_cancelled_task_shows_time_and_reason(loki: Queue, clock: MovedClock) -> None:
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
    await loki.batch.cancel([running, pending], "obsolete")
    assert [task.id for task in (await loki.tasks.list(status="cancelled")).tasks] == [running, pending]
    assert (await loki.tasks.list(status=["ready", "running"])).tasks == []


@pytest.mark.requirement("L-098", "L-104")
async def test_loki_refuses_to_cancel_ended_tasks(loki: Queue) -> None:
    completed = (await loki.submit(type="code", payload={"n": 1})).id
    await finish(loki)
    buried = await dead_letter(loki, payload={"n": 2})
    cancelled = (await loki.submit(type="code", payload={"n": 3})).id
    await loki.cancel(cancelled)
    for task_id in (completed, buried, cancelled):
        with pytest.raises(WrongState):
            await loki.cancel(task_id)
    with pytest.raises(NotFound):
        await loki.cancel("no-such-task")


@pytest.mark.parametrize("profile", ["standard", "factory", "redis", "coscientist"])
async def test_other_profiles_can_cancel_a_dead_letter(queue: Queue, profile: str) -> None:
    await queue.settings.use_profile(profile)
    task_id = await dead_letter(queue, idempotency_key="k")
    assert (await queue.cancel(task_id)).status == "cancelled"


async def test_task_waiting_for_retry_can_be_cancelled(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.cancel(task_id)).status == "cancelled"
    assert (await queue.get(task_id)).available_at is None


@pytest.mark.requirement("L-102")
async def test_dependents_are_cancelled_with_reason_naming_their_parent(loki: Queue) -> None:
    await loki.settings.set("idempotency.source", "caller")
    ids = await submit_dag(loki, {"a": [], "b": ["a"], "c": ["b"]})
    await loki.cancel(ids["a"], "obsolete")
    reasons = {key: (await loki.get(task_id)).cancel_reason for key, task_id in ids.items()}
    assert reasons == {
        "a": "obsolete",
        "b": f"Parent {ids['a']} cancelled",
        "c": f"Parent {ids['b']} cancelled",
    }


@pytest.mark.parametrize(("setting", "status"), [("cancel", "cancelled"), ("wait", "pending"), ("satisfy", "ready")])
async def test_on_dependency_cancelled_setting_decides_for_dependents(queue: Queue, setting: str, status: str) -> None:
    await queue.settings.set("on_dependency_cancelled", setting)
    ids = await submit_dag(queue, {"a": [], "b": ["a"]})
    await queue.cancel(ids["a"])
    assert await statuses(queue, ids) == {"a": "cancelled", "b": status}


async def test_submit_with_a_cancelled_dependency_is_cancelled_at_once(queue: Queue) -> None:
    first = (await queue.submit(type="code")).id
    await queue.cancel(first)
    second = (await queue.submit(type="code", dependencies=[first])).id
    assert (await queue.get(second)).cancel_reason == f"Parent {first} cancelled"


@pytest.mark.requirement("A-116")
async def test_task_cancelled_while_running_refuses_its_result(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    token = (await take(queue)).token
    await queue.cancel(task_id, "obsolete")
    answer = await queue.heartbeat(token)
    assert (answer.action, answer.reason) == ("cancel", "obsolete")
    with pytest.raises(LeaseLost):
        await queue.complete(token)
    assert (await queue.get(task_id)).status == "cancelled"
    (agent,) = await queue.agents.list()
    assert agent.current_tasks == 0


@pytest.mark.requirement("L-063", "L-064")
async def test_only_one_of_two_concurrent_completions_takes_effect(
    loki: Queue, clock: MovedClock, store_url: str
) -> None:
    task_id = (await loki.submit(type="code")).id
    token = (await take(loki)).token
    async with Queue.open(store_url, clock=clock) as second:
        outcomes = await asyncio.gather(
            *(each.complete(token, n, decision_report=REPORT) for n, each in enumerate((loki, second), 1))
        )
    assert sorted(outcome.repeated for outcome in outcomes) == [False, True]
    winner = next(n for n, outcome in enumerate(outcomes, 1) if not outcome.repeated)
    assert (await loki.result(task_id)).data == winner


@pytest.mark.requirement("L-097")
async def test_concurrent_cancel_and_claim_have_one_outcome(queue: Queue, clock: MovedClock, store_url: str) -> None:
    task_ids = [made.id for made in await queue.submit_many([{"type": "code"}] * 20)]
    await queue.agents.register(id="worker", max_concurrent_tasks=20)
    async with Queue.open(store_url, clock=clock) as second:
        claimed, _ = await asyncio.gather(
            queue.claim("worker", 20, start=True), second.batch.cancel(task_ids, "obsolete")
        )
    assert {task.status for task in (await queue.tasks.list()).tasks} == {"cancelled"}
    for assignment in claimed:
        with pytest.raises(LeaseLost):
            await queue.complete(assignment.token)


@pytest.mark.requirement("C-246")
async def test_cancel_with_outdated_version_changes_nothing(queue: Queue) -> None:
    task_id = (await queue.submit(type="code")).id
    read = (await queue.get(task_id)).version
    await queue.tasks.update(task_id, {"priority": 1})
    with pytest.raises(VersionConflict):
        await queue.cancel(task_id, version=read)
    assert (await queue.get(task_id)).status == "ready"
    assert (await queue.cancel(task_id, version=read + 1)).status == "cancelled"
