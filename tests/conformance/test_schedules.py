"""Schedules: a task at each tick, once, whatever servers do and however long none of them ran."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.core.errors import InputError, NotFound
from shiftwork.testing import MovedClock, pass_time

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
AUDIT = {"type": "audit", "title": "Audit of {{ day }}"}
DAY_OF_TICK = {"day": {"from": "tick"}}


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


async def go_to(queue: Queue, clock: MovedClock, text: str) -> None:
    await pass_time(queue, clock, at(text) - clock())


async def schedule(queue: Queue, cron: str, name: str = "audit", **more: Any) -> None:
    overlap = more.pop("overlap", "allow")
    on = {"kind": "cron", "at": cron, **more}
    await queue.save_trigger(name, on=on, task=AUDIT, parameters=DAY_OF_TICK, overlap=overlap)


async def titles(queue: Queue) -> list[str]:
    found = (await queue.tasks(type="audit", limit=1000)).tasks
    return sorted(str(task.title) for task in found)


async def told(queue: Queue, verb: str) -> list[dict[str, Any]]:
    events, _ = await queue.events(limit=10_000)
    return [event.data or {} for event in events if event.verb == verb]


@pytest.mark.requirement("F-204", "A-029")
async def test_a_task_appears_at_each_tick(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T08:00")
    await schedule(queue, "0 9 * * MON")
    assert (await queue.trigger("audit")).next_at == at("2026-03-02T09:00")
    await go_to(queue, clock, "2026-03-02T08:59:59")
    assert await titles(queue) == []
    await go_to(queue, clock, "2026-03-02T09:00")
    assert await titles(queue) == ["Audit of 2026-03-02T09:00:00Z"]
    (task,) = (await queue.tasks(type="audit")).tasks
    assert (task.created_by, task.trigger_type) == ("cron:audit", "autopilot")
    await pass_time(queue, clock, 0)
    await go_to(queue, clock, "2026-03-09T08:59")
    assert len(await titles(queue)) == 1
    await go_to(queue, clock, "2026-03-09T09:00")
    assert len(await titles(queue)) == 2
    assert (await queue.trigger("audit")).fired == 2


@pytest.mark.requirement("F-052")
async def test_every_task_says_who_created_it(queue: Queue, clock: MovedClock) -> None:
    for author in ("agent:orchestrator", "human:adam", "cron:nightly-audit"):
        task = await queue.submit(type="code", created_by=author)
        assert (await queue.get(task.id)).created_by == author
    (held,) = await queue.claim("coder", start=True)
    (child,) = await queue.spawn(held.token, [{"type": "child"}])
    assert (await queue.get(child.id)).created_by == "agent:coder"
    await schedule(queue, "@hourly", name="nightly-audit")
    await pass_time(queue, clock, HOUR)
    (scheduled,) = (await queue.tasks(type="audit")).tasks
    assert scheduled.created_by == "cron:nightly-audit"


@pytest.mark.parametrize(
    ("zone", "cron", "before", "ticks"),
    [
        ("Europe/Berlin", "30 2 * * *", "03-28T12:00", ["03-29T01:00", "03-30T00:30"]),  # left out: at 03:00
        ("Europe/Berlin", "30 2 * * *", "10-24T12:00", ["10-25T00:30", "10-26T01:30"]),  # comes twice: the first
        ("America/New_York", "30 2 * * *", "03-07T12:00", ["03-08T07:00", "03-09T06:30"]),
        ("America/New_York", "30 1 * * *", "10-31T12:00", ["11-01T05:30", "11-02T06:30"]),
        ("Australia/Lord_Howe", "15 2 * * *", "10-03T03:00", ["10-03T15:30", "10-04T15:15"]),  # 02:00 is 02:30
        ("Australia/Lord_Howe", "45 1 * * *", "04-04T03:00", ["04-04T14:45", "04-05T15:15"]),
        ("Africa/Cairo", "30 0 * * *", "04-23T12:00", ["04-23T22:00", "04-24T21:30"]),  # at midnight
        ("Africa/Cairo", "30 23 * * *", "10-29T12:00", ["10-29T20:30", "10-30T21:30"]),
    ],
)
async def test_a_tick_is_fired_once_on_the_days_that_clocks_change(
    queue: Queue, clock: MovedClock, zone: str, cron: str, before: str, ticks: list[str]
) -> None:
    await go_to(queue, clock, f"2026-{before}")
    await schedule(queue, cron, zone=zone, missed="all")
    for _ in range(8):
        await pass_time(queue, clock, 6 * HOUR)
    assert await titles(queue) == [f"Audit of 2026-{tick}:00Z" for tick in ticks]


@pytest.mark.parametrize(
    ("missed", "fired"),
    [
        ("one", ["03:00"]),
        ("skip", []),
        ("all", ["01:00", "02:00", "03:00"]),
    ],
)
async def test_after_three_ticks_without_a_server_the_policy_says_what_is_fired(
    queue: Queue, clock: MovedClock, missed: str, fired: list[str]
) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed=missed)
    await go_to(queue, clock, "2026-03-02T03:30")
    assert await titles(queue) == [f"Audit of 2026-03-02T{hour}:00Z" for hour in fired]
    await go_to(queue, clock, "2026-03-02T04:00")
    assert len(await titles(queue)) == len(fired) + 1
    events = await told(queue, "trigger_fired") + await told(queue, "trigger_skipped")
    assert sum(event.get("missed", 0) for event in events) == 3 - len(fired)


async def test_a_tick_a_moment_ago_is_not_missed(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed="skip")
    await go_to(queue, clock, "2026-03-02T01:00:30")
    assert len(await titles(queue)) == 1


async def test_a_year_of_missed_minutes_is_bounded(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", missed="all")
    await pass_time(queue, clock, 365 * DAY)
    assert len(await titles(queue)) == 100
    await pass_time(queue, clock, 0)
    assert len(await titles(queue)) == 100


async def test_while_work_goes_on_the_next_tick_is_skipped_and_says_why(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", overlap="skip")
    await pass_time(queue, clock, MINUTE)
    (first,) = (await queue.tasks(type="audit")).tasks
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 1
    assert (await queue.firings("audit"))[0].reason == f"{first.dag_id} has not ended"
    assert (await told(queue, "trigger_skipped"))[0]["reason"] == f"{first.dag_id} has not ended"
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token)
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 2


async def test_work_that_goes_on_may_give_way(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", overlap="replace")
    await pass_time(queue, clock, MINUTE)
    (first,) = (await queue.tasks(type="audit")).tasks
    await pass_time(queue, clock, MINUTE)
    assert (await queue.get(first.id)).cancel_reason == "replaced by trigger audit"
    assert len((await queue.tasks(type="audit", status="ready")).tasks) == 1


async def test_a_schedule_is_always_late_by_the_same_part_of_its_jitter(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    for n in range(5):
        await schedule(queue, "0 * * * *", name=f"audit-{n}", jitter_sec=600)
    late = [found.next_at for found in await queue.triggers()]
    assert len(set(late)) == 5
    assert all(at("2026-03-02T01:00") <= (each or 0) < at("2026-03-02T01:10") for each in late)
    await go_to(queue, clock, "2026-03-02T01:10")
    assert await titles(queue) == ["Audit of 2026-03-02T01:00:00Z"] * 5
    assert [found.next_at for found in await queue.triggers()] == [(each or 0) + HOUR for each in late]


async def test_a_paused_schedule_misses_nothing(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed="all")
    paused = await queue.pause_trigger("audit")
    assert (paused.paused_at, paused.next_at) == (clock(), None)
    await go_to(queue, clock, "2026-03-02T05:30")
    assert (await queue.resume_trigger("audit")).next_at == at("2026-03-02T06:00")
    await go_to(queue, clock, "2026-03-02T06:00")
    assert await titles(queue) == ["Audit of 2026-03-02T06:00:00Z"]


async def test_what_cannot_be_created_is_told_and_the_schedule_moves_on(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *")
    await schedule(queue, "* * * * *", name="other")
    await queue.set_setting("allowed_types", ["code"])
    await pass_time(queue, clock, MINUTE)
    skipped = await told(queue, "trigger_skipped")
    assert sorted(event["trigger"] for event in skipped) == ["audit", "other"]
    assert "is not one of this workspace's" in skipped[0]["reason"]
    await queue.unset_setting("allowed_types")
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 2


async def test_saving_a_schedule_again_keeps_its_place(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *")
    clock.advance(2 * HOUR)
    await schedule(queue, "0 * * * *", overlap="skip")
    assert (await queue.trigger("audit")).next_at == at("2026-03-02T01:00")
    await schedule(queue, "45 * * * *")
    assert (await queue.trigger("audit")).next_at == at("2026-03-02T02:45")


@pytest.mark.parametrize(
    ("on", "where"),
    [
        ({"at": "61 * * * *"}, "on.at"),
        ({"at": "* * * * * *"}, "on.at"),
        ({"at": "0 0 30 2 *"}, "on.at"),
        ({"at": "@reboot"}, "on.at"),
        ({"at": "@daily", "zone": "Mars/Olympus"}, "on.zone"),
        ({"at": "@daily", "zone": "../secrets"}, "on.zone"),
        ({"at": "@daily", "missed": "perhaps"}, "trigger.on.missed"),
        ({"at": "@daily", "jitter_sec": -1}, "trigger.on.jitter_sec"),
    ],
)
async def test_a_schedule_that_cannot_be_read_is_refused(queue: Queue, on: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.save_trigger("audit", on={"kind": "cron", **on}, task=AUDIT, parameters=DAY_OF_TICK)
    assert refused.value.where == where
    assert await queue.triggers() == []


async def test_a_trigger_that_is_not_there_is_not_found(queue: Queue) -> None:
    for verb in (queue.trigger, queue.pause_trigger, queue.resume_trigger, queue.fire_trigger, queue.firings):
        with pytest.raises(NotFound):
            await verb("none")
    assert await queue.remove_trigger("none") is False
