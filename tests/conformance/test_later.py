"""Tasks that start later, and tasks that expire before they have started."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shiftwork import Assignment, NewTask, Queue
from shiftwork.engine.engine import Caller
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.maintenance.loop import PROMPT, ErrorThrottle, JobPoller
from shiftwork.maintenance.poll import poll
from shiftwork.model import ids
from shiftwork.model.errors import InputError, WrongState
from shiftwork.store.store import Tx
from shiftwork.testing import MovedClock, pass_time
from shiftwork.waits import open_waits, schedule
from tests.conformance.steps import events_named, everything, ids_in_order, states, statuses, take


def at(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


async def claimable(queue: Queue, agent: str = "worker") -> list[Assignment]:
    return await queue.claim(agent, 10, start=True)


async def in_an_hour(queue: Queue, **fields: Any) -> str:
    return (await queue.submit(type="code", delay=3600, **fields)).id


@pytest.mark.parametrize("form", ["delay", "timedelta", "seconds", "datetime", "iso"])
async def test_scheduled_task_starts_at_its_time(queue: Queue, clock: MovedClock, form: str) -> None:
    start = clock() + 600
    when: dict[str, dict[str, Any]] = {
        "delay": {"delay": 600},
        "timedelta": {"delay": timedelta(minutes=10)},
        "seconds": {"run_at": start},
        "datetime": {"run_at": at(start)},
        "iso": {"run_at": at(start).isoformat()},
    }
    made = await queue.submit({"type": "code", **when[form]})
    assert made.status == "pending"
    task = await queue.get(made.id)
    assert (task.status, task.hold, task.waits) == ("pending", "scheduled", [])
    assert task.run_at == pytest.approx(start, abs=1e-3)
    await pass_time(queue, clock, 599)
    assert await claimable(queue) == []
    assert (await pass_time(queue, clock, 1.001))["waits"] == {"ended": 1}
    assert [held.id for held in await claimable(queue)] == [made.id]
    assert await states(queue, made.id) == ["created", "pending", "ready", "claimed", "running"]


async def test_start_time_in_the_past_means_at_once(queue: Queue, clock: MovedClock) -> None:
    past = await queue.submit(type="code", run_at=clock() - 60)
    now = await queue.submit(type="code", delay=0)
    assert (past.status, now.status) == ("ready", "ready")
    assert await ids_in_order(queue) == [past.id, now.id]


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "both": ({"run_at": 60, "delay": 60}, "exclude each other", "delay"),
    "both ends": ({"expires_at": 60, "expires_in": 60}, "exclude each other", "expires_in"),
    "expired": ({"expires_at": -60}, "expired already", "expires_at"),
    "expires now": ({"expires_in": 0}, "expired already", "expires_at"),
    "before start": ({"delay": 60, "expires_in": 60}, "would expire at", "expires_at"),
    "negative": ({"delay": -1}, "Expected `float` >= 0", "delay"),
    "negative timedelta": ({"delay": timedelta(seconds=-1)}, "expected 0 to", "delay"),
    "naive": ({"run_at": datetime(2036, 1, 1)}, "timezone", "run_at"),  # noqa: DTZ001  # which is refused
    "naive text": ({"run_at": "2036-01-01T00:00:00"}, "timezone", "run_at"),
    "word": ({"run_at": "tomorrow"}, "datetime", "run_at"),
    "infinite": ({"run_at": float("inf")}, "Expected `float` <=", "run_at"),
    "not a number": ({"run_at": float("nan")}, "Expected `float`", "run_at"),
    "flag": ({"delay": True}, "Expected", "delay"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_times_are_refused_with_their_place(queue: Queue, clock: MovedClock, name: str) -> None:
    fields, what, where = BAD[name]
    given = {
        key: clock() + value if key.endswith("_at") and type(value) is int else value for key, value in fields.items()
    }
    before = await everything(queue)
    with pytest.raises(InputError, match=what) as refused:
        await queue.submit({"type": "code", **given})
    assert (refused.value.where or "").endswith(where)
    with pytest.raises(InputError) as of_many:
        await queue.submit_many([{"type": "code"}, {"type": "code", **given}])
    assert (of_many.value.where or "") == f"tasks[1].{where}"
    assert await everything(queue) == before


async def test_naive_time_is_refused_with_a_hint(queue: Queue) -> None:
    with pytest.raises(InputError) as refused:
        await queue.submit({"type": "code", "run_at": datetime(2036, 1, 1)})  # noqa: DTZ001  # which is refused
    assert refused.value.hint == "Give it a time zone: datetime.now(UTC), or 2030-01-31T12:00:00Z."


async def test_explain_names_the_time(queue: Queue, clock: MovedClock) -> None:
    task_id = await in_an_hour(queue)
    explained = await queue.explain(task_id)
    start = (await queue.get(task_id)).run_at
    assert start is not None
    assert explained.summary == f"it is scheduled for {at(start):%Y-%m-%d %H:%M:%S} UTC"
    (hold,) = explained.holds
    assert (hold.kind, hold.until) == ("scheduled", start)


async def test_dependencies_and_time_must_both_be_met(queue: Queue, clock: MovedClock) -> None:
    first = await queue.submit(type="code")
    late = await in_an_hour(queue, dependencies=[first.id])
    early = (await queue.submit(type="code", delay=10, dependencies=[first.id])).id
    assert {hold.kind for hold in (await queue.explain(late)).holds} == {"scheduled", "dependency"}
    await pass_time(queue, clock, 10)
    assert (await queue.get(early)).hold is None
    held = await take(queue)
    assert held.id == first.id
    await queue.complete(held.token)
    assert await statuses(queue, {"late": late, "early": early}) == {"late": "pending", "early": "ready"}
    await pass_time(queue, clock, 3600)
    assert (await queue.get(late)).status == "ready"


async def test_dag_nodes_and_subtasks_may_start_later(queue: Queue, clock: MovedClock) -> None:
    dag = [
        {"key": "a", "type": "code"},
        {"key": "b", "type": "code", "dependencies": ["a"], "delay": timedelta(hours=1)},
    ]
    made = {each.key: each.id for each in await queue.submit_dag({"tasks": dag})}
    held = await take(queue)
    (spawned,) = await queue.spawn(held.token, [NewTask(type="code", run_at=at(clock() + 60))])
    await queue.complete(held.token)
    assert await claimable(queue) == []
    await pass_time(queue, clock, 60)
    (second,) = await claimable(queue)
    assert second.id == spawned.id
    await queue.complete(second.token)
    await pass_time(queue, clock, 3540)
    assert [each.id for each in await claimable(queue)] == [made["b"]]


async def test_dag_with_a_failure_stays_open_while_a_task_is_scheduled(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit_dag(
        {"tasks": [{"type": "code", "max_attempts": 1}, {"type": "code", "delay": 60}, {"type": "code", "delay": 90}]}
    )
    await queue.fail((await take(queue)).token, "crash")
    dag_id = made[0].dag_id
    assert dag_id is not None
    assert (await queue.dags.get(dag_id)).status == "running"
    for wait in (60, 30):
        await pass_time(queue, clock, wait)
        await queue.complete((await take(queue)).token)
    assert (await queue.dags.get(dag_id)).status == "failed"


async def test_guard_is_asked_when_the_time_has_come(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("guards", [{"type": "code"}])
    task_id = await in_an_hour(queue)
    assert await queue.approvals.list() == []
    await pass_time(queue, clock, 3600)
    assert (await queue.get(task_id)).status == "waiting_approval"
    await queue.approvals.approve(task_id)
    assert (await queue.get(task_id)).status == "ready"


async def test_scheduled_task_can_be_cancelled(queue: Queue, clock: MovedClock) -> None:
    task_id = await in_an_hour(queue)
    await queue.cancel(task_id)
    assert "waits" not in await pass_time(queue, clock, 3600)
    assert (await queue.get(task_id)).status == "cancelled"


async def test_priority_changes_while_the_task_waits_for_its_time(queue: Queue, clock: MovedClock) -> None:
    last = await in_an_hour(queue)
    first = await in_an_hour(queue)
    await queue.tasks.update(first, {"priority": 1})
    assert (await queue.get(first)).hold == "scheduled"
    await pass_time(queue, clock, 3600)
    assert await ids_in_order(queue) == [first, last]


async def test_time_can_be_moved_and_lifted(queue: Queue, clock: MovedClock) -> None:
    task_id = await in_an_hour(queue)
    await queue.tasks.update(task_id, {"run_at": at(clock() + 60)})
    await pass_time(queue, clock, 59)
    assert await claimable(queue) == []
    await queue.tasks.update(task_id, {"clear": ["run_at"]})
    task = await queue.get(task_id)
    assert (task.status, task.hold, task.run_at) == ("ready", None, None)


async def test_ready_task_can_be_postponed(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.tasks.update(task_id, {"run_at": clock() + 60})
    assert (await queue.get(task_id)).hold == "scheduled"
    assert await claimable(queue) == []
    await pass_time(queue, clock, 60)
    assert len(await claimable(queue)) == 1


async def test_moving_the_time_into_the_past_starts_the_task(queue: Queue, clock: MovedClock) -> None:
    task_id = await in_an_hour(queue)
    assert (await queue.tasks.update(task_id, {"run_at": clock() - 1})).status == "ready"
    assert len(await claimable(queue)) == 1


async def test_time_of_a_retry_can_be_moved(queue: Queue, clock: MovedClock) -> None:
    task_id = (
        await queue.submit(type="code", retry={"strategy": "fixed", "initial_delay_sec": 600, "jitter": False})
    ).id
    await queue.fail((await take(queue)).token, "crash")
    await queue.tasks.update(task_id, {"run_at": clock() + 5})
    await pass_time(queue, clock, 5)
    assert (await queue.get(task_id)).status == "ready"


async def test_time_of_a_task_that_sleeps_cannot_be_moved(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code")).id
    await queue.waits.wait((await take(queue)).token, "nap", until=clock() + 60)
    with pytest.raises(WrongState, match="has begun"):
        await queue.tasks.update(task_id, {"run_at": clock() + 600})


async def test_retry_does_not_wait_for_the_time_again(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", delay=60, retry={"strategy": "immediate"})).id
    await pass_time(queue, clock, 60)
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(task_id)).status == "ready"


async def test_rerun_starts_at_once_and_does_not_expire(queue: Queue, clock: MovedClock) -> None:
    task_id = (await queue.submit(type="code", delay=60, expires_in=90)).id
    await pass_time(queue, clock, 60)
    await queue.complete((await take(queue)).token)
    again = await queue.tasks.rerun(task_id)
    assert again.status == "ready"
    task = await queue.get(again.task_id)
    assert (task.run_at, task.expires_at) == (None, None)
    assert "expiries" not in await pass_time(queue, clock, 60)


async def test_agent_may_wait_under_any_name(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code", delay=60)
    await pass_time(queue, clock, 60)
    wait = await queue.waits.wait((await take(queue)).token, "run_at", until=clock() + 60)
    assert wait.status == "open"
    await pass_time(queue, clock, 60)
    assert (await queue.waits.wait((await take(queue)).token, "run_at", until=clock() + 60)).status == "met"


async def test_revived_dependent_waits_for_its_time_again(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("on_dependency_failed", "cancel")
    first = await queue.submit(type="code", max_attempts=1)
    late = await in_an_hour(queue, dependencies=[first.id])
    await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(late)).status == "cancelled"
    await queue.dead_letters.review(first.id, "retry", chain=True)
    assert (await queue.get(late)).hold == "scheduled"
    await queue.complete((await take(queue)).token)
    await pass_time(queue, clock, 3600)
    assert (await queue.get(late)).status == "ready"


async def test_equal_tasks_at_different_times_are_not_duplicates(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("idempotency.source", "params_hash")
    now = await queue.submit(type="code", payload={"a": 1})
    later = await queue.submit(type="code", payload={"a": 1}, delay=60)
    assert later.id != now.id


async def test_status_counts_what_is_scheduled(queue: Queue, clock: MovedClock) -> None:
    await in_an_hour(queue)
    await queue.submit(type="code", delay=60)
    await queue.submit(type="code")
    status = await queue.status(fresh=True)
    assert (status.scheduled, status.next_scheduled_at) == (2, clock() + 60)
    await pass_time(queue, clock, 3600)
    status = await queue.status(fresh=True)
    assert (status.scheduled, status.next_scheduled_at) == (0, None)


async def expire_in(queue: Queue, seconds: float, **fields: Any) -> str:
    return (await queue.submit(type="code", expires_in=seconds, **fields)).id


async def test_task_that_waits_too_long_expires(queue: Queue, clock: MovedClock) -> None:
    task_id = await expire_in(queue, 60)
    assert "expiries" not in await pass_time(queue, clock, 59.9)
    assert (await pass_time(queue, clock, 0.2))["expiries"] == {"expired": 1}
    task = await queue.get(task_id)
    assert (task.status, task.cancel_reason, task.failure_reason) == ("cancelled", "expired", "expired")
    assert await events_named(queue, "task.expired") == [task_id]
    assert await events_named(queue, "task.cancelled") == [task_id]
    assert (await queue.explain(task_id)).summary == "cancelled: expired"
    assert await claimable(queue) == []


async def test_expired_task_is_not_claimed_before_maintenance_has_run(queue: Queue, clock: MovedClock) -> None:
    await expire_in(queue, 60)
    await queue.submit(type="docs", expires_in=60)
    clock.advance(60)
    assert await queue.claim("worker", types=["code"]) == []
    assert await queue.claim("worker", 2) == []
    assert await queue.claim("worker", 2, fifo=True) == []


@pytest.mark.parametrize("state", ["pending", "scheduled", "waiting_approval", "retrying"])
async def test_task_expires_in_every_state_before_a_claim(queue: Queue, clock: MovedClock, state: str) -> None:
    if state == "waiting_approval":
        await queue.settings.set("guards", [{"type": "code"}])
    fields: dict[str, Any] = {"retry": {"strategy": "fixed", "initial_delay_sec": 600}}
    if state == "pending":
        fields["dependencies"] = [(await queue.submit(type="docs")).id]
    if state == "scheduled":
        fields["run_at"] = clock() + 30
        fields["dependencies"] = [(await queue.submit(type="docs")).id]
    task_id = await expire_in(queue, 60, **fields)
    if state == "retrying":
        await queue.fail((await take(queue)).token, "crash")
    assert (await queue.get(task_id)).status == ("pending" if state == "scheduled" else state)
    await pass_time(queue, clock, 60)
    assert (await queue.get(task_id)).cancel_reason == "expired"
    assert await queue.approvals.list() == []


async def test_running_task_is_not_disturbed_by_its_expiry(queue: Queue, clock: MovedClock) -> None:
    task_id = await expire_in(queue, 60)
    held = await take(queue)
    assert "expiries" not in await pass_time(queue, clock, 60)
    assert (await queue.heartbeat(held.token)).action == "continue"
    await queue.complete(held.token)
    assert (await queue.get(task_id)).status == "completed"


async def test_task_that_freed_its_slot_continues_after_its_expiry(queue: Queue, clock: MovedClock) -> None:
    task_id = await expire_in(queue, 60)
    await queue.waits.wait((await take(queue)).token, "nap", until=clock() + 120)
    assert "expiries" not in await pass_time(queue, clock, 120)
    assert [held.id for held in await claimable(queue)] == [task_id]


async def test_dependents_of_an_expired_task_end_like_those_of_a_cancelled_task(
    queue: Queue, clock: MovedClock
) -> None:
    task_id = await expire_in(queue, 60)
    below = (await queue.submit(type="code", dependencies=[task_id])).id
    free = (await queue.submit(type="docs", dependencies=[task_id], settings={"on_dependency_cancelled": "satisfy"})).id
    await pass_time(queue, clock, 60)
    assert await statuses(queue, {"below": below, "free": free}) == {"below": "cancelled", "free": "ready"}


async def test_expiry_can_be_moved_and_lifted(queue: Queue, clock: MovedClock) -> None:
    moved, lifted = await expire_in(queue, 60), await expire_in(queue, 60)
    await queue.tasks.update(moved, {"expires_at": at(clock() + 120)})
    await queue.tasks.update(lifted, {"clear": ["expires_at"]})
    await pass_time(queue, clock, 60)
    assert await statuses(queue, {"moved": moved, "lifted": lifted}) == {"moved": "ready", "lifted": "ready"}
    await pass_time(queue, clock, 60)
    assert await statuses(queue, {"moved": moved, "lifted": lifted}) == {"moved": "cancelled", "lifted": "ready"}


async def test_bad_changes_of_times_change_nothing(queue: Queue, clock: MovedClock) -> None:
    task_id = await expire_in(queue, 60)
    before = await everything(queue)
    for changes, what in (
        ({"expires_at": clock() - 1}, "would have expired already"),
        ({"run_at": clock() + 60}, "would expire at"),
        ({"run_at": datetime(2036, 1, 1)}, "timezone"),  # noqa: DTZ001  # which is refused
    ):
        with pytest.raises(InputError, match=what):
            await queue.tasks.update(task_id, changes)
    assert await everything(queue) == before


async def test_retried_dead_letter_does_not_expire(queue: Queue, clock: MovedClock) -> None:
    task_id = await expire_in(queue, 60, max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    assert "expiries" not in await pass_time(queue, clock, 60)
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"payload": {"a": 1}})
    assert len(await claimable(queue)) == 1


@pytest.mark.parametrize("what", ["scheduled", "retry", "expiry"])
async def test_next_poll_is_at_the_moment_that_something_is_due(queue: Queue, clock: MovedClock, what: str) -> None:
    due = clock() + 0.07
    if what == "scheduled":
        await queue.submit(type="code", run_at=due)
    if what == "expiry":
        await queue.submit(type="code", expires_at=due)
    if what == "retry":
        retry = {"strategy": "fixed", "initial_delay_sec": 0.07, "jitter": False}
        await queue.submit(type="code", retry=retry)
        await queue.fail((await take(queue)).token, "crash")
    seen = await poll(queue.engine)
    assert seen.next_moment(PROMPT) == pytest.approx(due, abs=1e-6)
    poller = JobPoller(queue.engine, ErrorThrottle())
    poller._seen = seen  # as if it had looked
    assert poller._pause() == pytest.approx(0.07, abs=1e-3)  # until the next look


async def test_trigger_creates_tasks_for_later(queue: Queue, clock: MovedClock) -> None:
    task = {"type": "code", "delay": timedelta(minutes=1), "expires_in": 120}
    await queue.triggers.save("later", on={"kind": "event", "events": ["task.completed"]}, task=task)
    firing = await queue.triggers.fire("later")
    made = await queue.get(firing.tasks[0])
    assert (made.hold, made.run_at, made.expires_at) == ("scheduled", clock() + 60, clock() + 120)


@pytest.mark.parametrize(("field", "instead"), [("run_at", "delay"), ("expires_at", "expires_in")])
async def test_trigger_with_an_absolute_time_is_refused(
    queue: Queue, clock: MovedClock, field: str, instead: str
) -> None:
    on = {"kind": "event", "events": ["task.completed"]}
    with pytest.raises(InputError, match="fires repeatedly") as refused:
        await queue.triggers.save("later", on=on, task={"type": "code", field: clock() + 60})
    assert refused.value.hint == f"Give `{instead}`, in seconds from the firing."


async def test_scheduled_task_ages_from_its_time_on(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("priority_boost_per_minute", 1)
    await queue.settings.set("starvation_threshold_sec", 7200)
    late = await in_an_hour(queue, priority=60)
    await pass_time(queue, clock, 3600)
    task = await queue.get(late)
    assert (task.age_minutes, task.effective_priority) == (0, 60)
    urgent = (await queue.submit(type="code", priority=59)).id
    assert await ids_in_order(queue) == [urgent, late]
    assert await events_named(queue, "task.starved") == []


async def test_tasks_that_are_due_go_in_the_order_of_their_times(queue: Queue, clock: MovedClock) -> None:
    last = (await queue.submit(type="code", delay=60)).id
    first = (await queue.submit(type="code", delay=30)).id
    await pass_time(queue, clock, 60)
    assert await ids_in_order(queue) == [first, last]


async def test_average_wait_counts_from_the_time_of_a_scheduled_task(queue: Queue, clock: MovedClock) -> None:
    await in_an_hour(queue)
    await pass_time(queue, clock, 3610)
    await take(queue)
    assert (await queue.status(fresh=True)).average_wait_sec["medium"] == pytest.approx(10)


async def test_start_time_postponed_meanwhile_is_respected(queue: Queue, clock: MovedClock) -> None:
    """Maintenance has found the task due, and then someone postpones it before its row is locked."""
    task_id = (await queue.submit(type="code", delay=60)).id
    uuid = ids.parse(task_id)
    assert uuid is not None
    clock.advance(60)
    await queue.tasks.update(task_id, {"run_at": clock() + 60})

    async def end_as_found(tx: Tx) -> int:
        work = UnitOfWork(tx, queue.engine, Caller("maintenance:waits"))
        freed = await open_waits.end(work, [open_waits.WaitEnd(uuid, schedule.NAME, "met")])
        await work.save()
        return len(freed)

    assert await queue.engine.store.run(end_as_found) == 0
    assert (await queue.get(task_id)).hold == "scheduled"
    await pass_time(queue, clock, 60)
    assert (await queue.get(task_id)).status == "ready"
