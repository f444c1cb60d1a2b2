"""Wherever a time or a duration is taken, it may be a number, a `datetime` or a `timedelta`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import finish, take

MINUTE = timedelta(minutes=1)
NAIVE = datetime(2036, 1, 1)  # noqa: DTZ001  # which is refused


def at(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


async def test_task_takes_datetimes_and_timedeltas(queue: Queue, clock: MovedClock) -> None:
    settings = {"heartbeat_timeout_sec": timedelta(seconds=77)}
    retry = {"strategy": "schedule", "schedule_sec": [MINUTE, timedelta(minutes=5)]}
    made = await queue.submit(
        type="code", deadline=at(clock() + 600), timeout_sec=MINUTE, settings=settings, retry=retry
    )
    task = await queue.get(made.id)
    assert (task.deadline, task.timeout_sec, list(task.retry["schedule_sec"])) == (clock() + 600, 60, [60, 300])
    held = await take(queue)
    assert held.task().claim.execution_deadline == clock() + 60
    await pass_time(queue, clock, timedelta(seconds=59))
    assert (await queue.heartbeat(held.token)).action == "continue"


async def test_changes_take_datetimes_and_timedeltas(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code")
    await queue.tasks.update(made.id, {"deadline": at(clock() + 60), "timeout_sec": MINUTE})
    task = await queue.get(made.id)
    assert (task.deadline, task.timeout_sec) == (clock() + 60, 60)


async def test_filters_take_datetimes(queue: Queue, clock: MovedClock) -> None:
    first = await queue.submit(type="code")
    await pass_time(queue, clock, 60)
    second = await queue.submit(type="code")
    now = at(clock())
    assert [task.id for task in (await queue.tasks.list(since=now)).tasks] == [second.id]
    assert [task.id for task in (await queue.tasks.list(until=now)).tasks] == [first.id]
    await finish(queue)
    assert (await queue.budgets.costs(since=now, until=now + MINUTE)) == await queue.budgets.costs(since=clock())
    assert await queue.metrics.failures(since=now) == []
    assert await queue.control.purge(created_before=now, status=["ready"]) == 0


async def test_waits_take_datetimes_and_timedeltas(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    wait = await queue.waits.wait((await take(queue)).token, "nap", until=at(clock() + 60))
    assert wait.until == clock() + 60
    await pass_time(queue, clock, 60)
    wait = await queue.waits.wait((await take(queue)).token, "signal", signal="go", timeout_sec=MINUTE)
    assert wait.until == clock() + 60


async def test_cooldowns_limits_settings_and_tokens_take_them(queue: Queue, clock: MovedClock) -> None:
    assert (await queue.cooldowns.set("provider:x", MINUTE)).until == clock() + 60
    assert (await queue.limits.set("provider:x", requests=5, window_sec=MINUTE)).window_sec == 60
    changed = await queue.settings.set("heartbeat_timeout_sec", timedelta(seconds=90))
    assert {each.key: each.value for each in changed}["heartbeat_timeout_sec"] == 90
    assert (await queue.tokens.create("t", ["read"], expires_at=at(clock() + 60))).expires_at == clock() + 60


async def test_claims_and_events_wait_for_a_timedelta(queue: Queue) -> None:
    assert await queue.claim("worker", wait=timedelta(milliseconds=10)) == []
    assert (await queue.events(wait=timedelta(milliseconds=1))).events is not None


async def test_dead_letter_is_retried_at_a_datetime(queue: Queue, clock: MovedClock) -> None:
    made = await queue.submit(type="code", max_attempts=1)
    await queue.fail((await take(queue)).token, "crash")
    await queue.dead_letters.review(made.id, "retry_later", at=at(clock() + 60))
    assert (await queue.get(made.id)).available_at == clock() + 60


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "naive filter": ("tasks.list", {"since": NAIVE}, "since"),
    "text": ("tasks.list", {"since": "yesterday"}, "since"),
    "negative cooldown": ("cooldowns.set", {"key": "provider:x", "seconds": -MINUTE}, "seconds"),
    "long wait": ("claims.request", {"agent_id": "a", "wait": timedelta(hours=1)}, "wait"),
    "duration for a time": ("budgets.costs", {"since": object()}, "since"),
    "empty timeout": ("submit", {"type": "code", "timeout_sec": timedelta(0)}, "task.timeout_sec"),
    "setting": ("settings.set", {"key": "heartbeat_timeout_sec", "value": "PTsoon"}, "heartbeat_timeout_sec"),
    "negative setting": ("settings.set", {"key": "heartbeat_timeout_sec", "value": -MINUTE}, "heartbeat_timeout_sec"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_times_and_durations_are_refused(queue: Queue, name: str) -> None:
    method, given, where = BAD[name]
    call: Any = queue
    for part in method.split("."):
        call = getattr(call, part)
    with pytest.raises(InputError) as refused:
        await call(**given)
    assert refused.value.where == where


async def test_bulk_filter_takes_datetimes(queue: Queue, clock: MovedClock) -> None:
    await queue.submit(type="code")
    await pass_time(queue, clock, 60)
    await queue.submit(type="code")
    counted = await queue.bulk.cancel({"until": at(clock())}, dry_run=True)
    assert counted.matched == 1
