"""Schedules: one task per tick, regardless of servers and of downtime."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, NotFound
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
    await queue.triggers.save(name, on=on, task=AUDIT, parameters=DAY_OF_TICK, overlap=overlap)


async def titles(queue: Queue) -> list[str]:
    found = (await queue.tasks.list(type="audit", limit=1000)).tasks
    return sorted(str(task.title) for task in found)


async def emitted(queue: Queue, verb: str) -> list[dict[str, Any]]:
    events = (await queue.events(limit=10_000)).events
    return [event.data or {} for event in events if event.verb == verb]


@pytest.mark.requirement("F-204", "A-029")
async def test_schedule_creates_a_task_at_each_tick(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T08:00")
    await schedule(queue, "0 9 * * MON")
    assert (await queue.triggers.get("audit")).next_at == at("2026-03-02T09:00")
    await go_to(queue, clock, "2026-03-02T08:59:59")
    assert await titles(queue) == []
    await go_to(queue, clock, "2026-03-02T09:00")
    assert await titles(queue) == ["Audit of 2026-03-02T09:00:00Z"]
    (task,) = (await queue.tasks.list(type="audit")).tasks
    assert (task.created_by, task.trigger_type) == ("cron:audit", "autopilot")
    await pass_time(queue, clock, 0)
    await go_to(queue, clock, "2026-03-09T08:59")
    assert len(await titles(queue)) == 1
    await go_to(queue, clock, "2026-03-09T09:00")
    assert len(await titles(queue)) == 2
    assert (await queue.triggers.get("audit")).fired == 2


@pytest.mark.requirement("F-052")
async def test_every_task_names_its_creator(queue: Queue, clock: MovedClock) -> None:
    for author in ("agent:orchestrator", "human:adam", "cron:nightly-audit"):
        task = await queue.submit(type="code", created_by=author)
        assert (await queue.get(task.id)).created_by == author
    (held,) = await queue.claim("coder", start=True)
    (child,) = await queue.spawn(held.token, [{"type": "child"}])
    assert (await queue.get(child.id)).created_by == "agent:coder"
    await schedule(queue, "@hourly", name="nightly-audit")
    await pass_time(queue, clock, HOUR)
    (scheduled,) = (await queue.tasks.list(type="audit")).tasks
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
async def test_tick_fires_once_on_daylight_saving_days(
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
async def test_missed_policy_decides_after_three_missed_ticks(
    queue: Queue, clock: MovedClock, missed: str, fired: list[str]
) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed=missed)
    await go_to(queue, clock, "2026-03-02T03:30")
    assert await titles(queue) == [f"Audit of 2026-03-02T{hour}:00Z" for hour in fired]
    await go_to(queue, clock, "2026-03-02T04:00")
    assert len(await titles(queue)) == len(fired) + 1
    events = await emitted(queue, "trigger_fired") + await emitted(queue, "trigger_skipped")
    assert sum(event.get("missed", 0) for event in events) == 3 - len(fired)


async def test_tick_thirty_seconds_late_is_not_missed(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed="skip")
    await go_to(queue, clock, "2026-03-02T01:00:30")
    assert len(await titles(queue)) == 1


async def test_missed_ticks_of_a_year_are_bounded(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", missed="all")
    await pass_time(queue, clock, 365 * DAY)
    assert len(await titles(queue)) == 100
    await pass_time(queue, clock, 0)
    assert len(await titles(queue)) == 100


async def test_overlap_skip_skips_the_tick_and_reports_the_reason(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", overlap="skip")
    await pass_time(queue, clock, MINUTE)
    (first,) = (await queue.tasks.list(type="audit")).tasks
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 1
    assert (await queue.triggers.firings("audit"))[0].reason == f"{first.dag_id} has not ended"
    assert (await emitted(queue, "trigger_skipped"))[0]["reason"] == f"{first.dag_id} has not ended"
    (held,) = await queue.claim("ada", start=True)
    await queue.complete(held.token)
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 2


async def test_overlap_replace_cancels_the_running_task(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *", overlap="replace")
    await pass_time(queue, clock, MINUTE)
    (first,) = (await queue.tasks.list(type="audit")).tasks
    await pass_time(queue, clock, MINUTE)
    assert (await queue.get(first.id)).cancel_reason == "replaced by trigger audit"
    assert len((await queue.tasks.list(type="audit", status="ready")).tasks) == 1


async def test_jitter_delays_a_schedule_by_a_constant_offset(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    for n in range(5):
        await schedule(queue, "0 * * * *", name=f"audit-{n}", jitter_sec=600)
    late = [found.next_at for found in await queue.triggers.list()]
    assert len(set(late)) == 5
    assert all(at("2026-03-02T01:00") <= (each or 0) < at("2026-03-02T01:10") for each in late)
    await go_to(queue, clock, "2026-03-02T01:10")
    assert await titles(queue) == ["Audit of 2026-03-02T01:00:00Z"] * 5
    assert [found.next_at for found in await queue.triggers.list()] == [(each or 0) + HOUR for each in late]


async def test_paused_schedule_has_no_missed_ticks(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *", missed="all")
    paused = await queue.triggers.pause("audit")
    assert (paused.paused_at, paused.next_at) == (clock(), None)
    await go_to(queue, clock, "2026-03-02T05:30")
    assert (await queue.triggers.resume("audit")).next_at == at("2026-03-02T06:00")
    await go_to(queue, clock, "2026-03-02T06:00")
    assert await titles(queue) == ["Audit of 2026-03-02T06:00:00Z"]


async def test_tick_that_cannot_create_a_task_is_skipped_and_reported(queue: Queue, clock: MovedClock) -> None:
    await schedule(queue, "* * * * *")
    await schedule(queue, "* * * * *", name="other")
    await queue.settings.set("allowed_types", ["code"])
    await pass_time(queue, clock, MINUTE)
    skipped = await emitted(queue, "trigger_skipped")
    assert sorted(event["trigger"] for event in skipped) == ["audit", "other"]
    assert "is not one of this workspace's" in skipped[0]["reason"]
    await queue.settings.unset("allowed_types")
    await pass_time(queue, clock, MINUTE)
    assert len(await titles(queue)) == 2


async def test_saving_a_schedule_again_keeps_its_next_tick(queue: Queue, clock: MovedClock) -> None:
    await go_to(queue, clock, "2026-03-02T00:30")
    await schedule(queue, "0 * * * *")
    clock.advance(2 * HOUR)
    await schedule(queue, "0 * * * *", overlap="skip")
    assert (await queue.triggers.get("audit")).next_at == at("2026-03-02T01:00")
    await schedule(queue, "45 * * * *")
    assert (await queue.triggers.get("audit")).next_at == at("2026-03-02T02:45")


@pytest.mark.parametrize(
    ("on", "where"),
    [
        ({"at": "61 * * * *"}, "on.at"),
        ({"at": "* * * * * *"}, "on.at"),
        ({"at": "0 0 30 2 *"}, "on.at"),
        ({"at": "@reboot"}, "on.at"),
        ({"at": "@daily", "zone": "Mars/Olympus"}, "on.zone"),
        ({"at": "@daily", "zone": "../secrets"}, "on.zone"),
        ({"at": "@daily", "missed": "perhaps"}, "on.missed"),
        ({"at": "@daily", "jitter_sec": -1}, "on.jitter_sec"),
    ],
)
async def test_invalid_schedule_is_refused(queue: Queue, on: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        await queue.triggers.save("audit", on={"kind": "cron", **on}, task=AUDIT, parameters=DAY_OF_TICK)
    assert refused.value.where == where
    assert await queue.triggers.list() == []


async def test_unknown_trigger_is_not_found(queue: Queue) -> None:
    for verb in (
        queue.triggers.get,
        queue.triggers.pause,
        queue.triggers.resume,
        queue.triggers.fire,
        queue.triggers.firings,
    ):
        with pytest.raises(NotFound):
            await verb("none")
    assert await queue.triggers.remove("none") is False
