"""A passed deadline is announced once, and cancels its task when configured."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, submit_dag, take

PASSED = "task.deadline_passed"


async def due_in(queue: Queue, clock: MovedClock, seconds: float, **fields: Any) -> str:
    return (await queue.submit(type="code", deadline=clock() + seconds, **fields)).id


async def passed(queue: Queue) -> list[str]:
    """Return the messages of the alerts."""
    return [alert.message for alert in await queue.alerts.list(kind="deadline_passed")]


@pytest.mark.requirement("F-022")
async def test_passed_deadline_emits_one_event_and_one_alert(factory: Queue, clock: MovedClock) -> None:
    task_id = await due_in(factory, clock, 600)
    assert "deadlines" not in await pass_time(factory, clock, 599)
    assert (await pass_time(factory, clock, 1))["deadlines"] == {"passed": 1}
    assert await passed(factory) == [f"Task {task_id} has passed its deadline and is ready"]
    assert await events_named(factory, PASSED) == [task_id]
    assert "deadlines" not in await pass_time(factory, clock, 3600)
    assert (await factory.get(task_id)).status == "ready"


@pytest.mark.parametrize("status", ["pending", "claimed", "running", "retrying"])
async def test_deadline_passes_in_every_non_final_state(factory: Queue, clock: MovedClock, status: str) -> None:
    await factory.settings.set("heartbeat_timeout_sec", None)
    await factory.settings.set("claim_ttl_sec", None)
    above = [(await factory.submit(type="docs")).id] if status == "pending" else []
    task_id = await due_in(factory, clock, 5, dependencies=above)
    if status != "pending":
        (held,) = await factory.claim("worker", types=["code"], start=status != "claimed")
        if status == "retrying":
            await factory.fail(held.token, "crash")
    await pass_time(factory, clock, 5)
    assert (await factory.get(task_id)).status == status
    assert await passed(factory) == [f"Task {task_id} has passed its deadline and is {status}"]


async def test_task_that_ended_in_time_has_no_passed_deadline(factory: Queue, clock: MovedClock) -> None:
    await due_in(factory, clock, 600)
    await factory.complete((await take(factory)).token)
    dead = await due_in(factory, clock, 600, max_attempts=1)
    await factory.fail((await take(factory)).token, "crash")
    assert (await factory.get(dead)).status == "dead_lettered"
    assert "deadlines" not in await pass_time(factory, clock, 3600)


async def test_moved_deadline_can_pass_again(factory: Queue, clock: MovedClock) -> None:
    task_id = await due_in(factory, clock, 60)
    await pass_time(factory, clock, 60)
    await factory.tasks.update(task_id, {"deadline": clock() + 60})
    await pass_time(factory, clock, 59)
    assert await events_named(factory, PASSED) == [task_id]
    await pass_time(factory, clock, 1)
    assert await events_named(factory, PASSED) == [task_id, task_id]


async def test_deadline_in_the_past_is_announced(factory: Queue, clock: MovedClock) -> None:
    task_id = await due_in(factory, clock, -60)
    await pass_time(factory, clock, 1)
    assert await events_named(factory, PASSED) == [task_id]


@pytest.mark.parametrize("running", [False, True])
async def test_task_is_cancelled_at_deadline_when_setting_says_so(
    factory: Queue, clock: MovedClock, *, running: bool
) -> None:
    settings = {"deadline": {"on_passed": "cancel"}}
    ids = await submit_dag(factory, {"a": [], "b": ["a"]})
    await factory.tasks.update(ids["a"], {"deadline": clock() + 60})
    other = await due_in(factory, clock, 60, priority=0, settings=settings)
    if running:
        assert (await take(factory)).id == other
    await pass_time(factory, clock, 60)
    assert (await factory.get(other)).status == "cancelled"
    assert (await factory.get(ids["a"])).status == "ready"  # its own settings say nothing of the kind
    assert set(await events_named(factory, PASSED)) == {other, ids["a"]}


async def test_dependents_of_a_task_cancelled_at_deadline_follow_their_setting(
    factory: Queue, clock: MovedClock
) -> None:
    await factory.settings.set("deadline.on_passed", "cancel")
    ids = await submit_dag(factory, {"a": [], "b": ["a"]})
    await factory.tasks.update(ids["a"], {"deadline": clock() + 60})
    await pass_time(factory, clock, 60)
    assert [(await factory.get(ids[key])).status for key in "ab"] == ["cancelled", "cancelled"]
    assert (await factory.get(ids["a"])).cancel_reason == f"Deadline of {ids['a']} passed"


async def test_more_than_one_batch_of_deadlines_passes_in_one_run(factory: Queue, clock: MovedClock) -> None:
    await factory.submit_many([{"type": "code", "deadline": clock() + 60}] * 1_201)
    assert (await pass_time(factory, clock, 60))["deadlines"] == {"passed": 1_201}


async def fails(queue: Queue) -> None:
    await queue.settings.set("deadline.on_passed", "fail")


@pytest.mark.parametrize("status", ["claimed", "running"])
async def test_held_task_fails_at_its_deadline(queue: Queue, clock: MovedClock, status: str) -> None:
    await fails(queue)
    task_id = await due_in(queue, clock, 5)
    below = (await queue.submit(type="docs", dependencies=[task_id], settings={"on_dependency_failed": "cancel"})).id
    (held,) = await queue.claim("worker", types=["code"], start=status == "running")
    await pass_time(queue, clock, 5)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason, task.attempts) == ("dead_lettered", "deadline_exceeded", 1)
    assert (task.last_error or "").startswith("The deadline passed at ")
    assert (await queue.heartbeat(held.token)).action == "lost"
    assert await events_named(queue, PASSED) == [task_id]
    assert (await queue.get(below)).status == "cancelled"


@pytest.mark.parametrize("status", ["pending", "scheduled", "waiting_approval", "ready", "retrying"])
async def test_task_that_waits_fails_at_its_deadline_without_an_attempt(
    queue: Queue, clock: MovedClock, status: str
) -> None:
    await fails(queue)
    if status == "waiting_approval":
        await queue.settings.set("guards", [{"type": "code"}])
    fields: dict[str, Any] = {"retry": {"strategy": "fixed", "initial_delay_sec": 600}}
    if status == "pending":
        fields["dependencies"] = [(await queue.submit(type="docs")).id]
    if status == "scheduled":
        fields["delay"] = 600
    task_id = await due_in(queue, clock, 5, **fields)
    if status == "retrying":
        await queue.fail((await take(queue)).token, "crash")
    attempts = (await queue.get(task_id)).attempts
    await pass_time(queue, clock, 5)
    task = await queue.get(task_id)
    assert (task.status, task.failure_reason, task.attempts) == ("dead_lettered", "deadline_exceeded", attempts)
    (letter,) = await queue.dead_letters.list()
    assert letter.reason == "deadline_exceeded"
    assert await queue.approvals.list() == []
    again = await queue.dead_letters.review(task_id, "retry")
    expected = {"pending": "pending", "scheduled": "pending", "waiting_approval": "waiting_approval"}
    assert again.status == expected.get(status, "ready")
    assert "deadlines" not in await pass_time(queue, clock, 600)
    if status == "scheduled":
        assert (await queue.get(task_id)).status == "ready"
