"""When schedules fire: on the days clocks change, and after downtime."""

import itertools
from datetime import datetime

import pytest

from shiftwork.model.errors import InputError
from shiftwork.triggers import schedule_policy
from shiftwork.triggers.model import Cron


def shown(cron: Cron, after: str, count: int) -> list[str]:
    """The next instants as the clocks of the zone show them."""
    start = datetime.fromisoformat(after).timestamp()
    zone = schedule_policy.zone_of(cron.zone)
    found = itertools.islice(schedule_policy.instants(cron, start), count)
    return [datetime.fromtimestamp(instant, zone).strftime("%d %H:%M %z") for instant in found]


@pytest.mark.parametrize(
    ("zone", "at", "after", "expected"),
    [
        # 02:00 to 03:00 is left out
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00Z", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("Europe/Berlin", "0 2,3 * * *", "2026-03-28T12:00Z", ["29 03:00 +0200", "30 02:00 +0200"]),
        ("Europe/Berlin", "*/30 * * * *", "2026-03-29T00:00Z", ["29 01:30 +0100", "29 03:00 +0200"]),
        ("Europe/Berlin", "*/30 2 * * *", "2026-03-28T12:00Z", ["30 02:00 +0200", "30 02:30 +0200"]),
        # 02:00 to 03:00 comes twice
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00Z", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("Europe/Berlin", "45 2 * * *", "2026-10-25T01:15Z", ["26 02:45 +0100"]),
        ("Europe/Berlin", "30 * * * *", "2026-10-25T00:00Z", ["25 02:30 +0200", "25 02:30 +0100", "25 03:30 +0100"]),
        # others
        ("America/New_York", "0 2 * * *", "2026-03-07T12:00Z", ["08 03:00 -0400", "09 02:00 -0400"]),
        ("America/New_York", "0 1 * * *", "2026-10-31T12:00Z", ["01 01:00 -0400", "02 01:00 -0500"]),
        ("Africa/Cairo", "0 0 * * *", "2026-04-22T12:00Z", ["23 00:00 +0200", "24 01:00 +0300", "25 00:00 +0300"]),
        ("Africa/Cairo", "0 0 * * *", "2026-10-28T12:00Z", ["29 00:00 +0300", "30 00:00 +0200"]),
        # half an hour
        ("Australia/Lord_Howe", "10 2 * * *", "2026-10-02T16:00Z", ["04 02:30 +1100", "05 02:10 +1100"]),
        ("Australia/Lord_Howe", "*/15 1-2 * * *", "2026-10-03T15:10Z", ["04 01:45 +1030", "04 02:30 +1100"]),
        ("Australia/Lord_Howe", "*/15 * * * *", "2026-04-04T14:30Z", ["05 01:45 +1100", "05 01:30 +1030"]),
        ("Australia/Lord_Howe", "*/15 2 * * *", "2026-04-04T13:30Z", ["05 02:00 +1030", "05 02:15 +1030"]),
    ],
)
def test_schedule_fires_correctly_on_daylight_saving_days(zone: str, at: str, after: str, expected: list[str]) -> None:
    assert shown(Cron(at=at, zone=zone), after, len(expected)) == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"])
@pytest.mark.parametrize("at", ["*/10 * * * *", "30 2 * * *", "15 1,2 * * *", "*/20 0-3 * * *", "45 23 * * *"])
def test_next_tick_does_not_depend_on_the_starting_time(zone: str, at: str) -> None:
    """Over a whole year, asking again after each tick yields the same ticks as iterating."""
    cron = Cron(at=at, zone=zone)
    start = datetime.fromisoformat("2026-03-01T00:00Z").timestamp()
    read_on = list(itertools.islice(schedule_policy.instants(cron, start), 400))
    assert read_on == sorted(set(read_on))
    now = start
    for expected in read_on[:: 1 if len(at) > 12 else 7]:
        now = max(now, expected - 1)
        assert schedule_policy.next_after(cron, now) == expected


@pytest.mark.parametrize(
    ("alias", "text"), [("@daily", "0 0 * * *"), ("@Hourly", "0 * * * *"), (" @weekly ", "0 0 * * 0")]
)
def test_alias_is_expanded_to_its_expression(alias: str, text: str) -> None:
    assert schedule_policy.fields(alias) == text


@pytest.mark.parametrize("text", ["", "* * * *", "* * * * * *", "60 * * * *", "@reboot", "a b c d e", "0 0 31 2 *"])
def test_invalid_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a cron expression"):
        schedule_policy.fields(text)


HOURLY, DAY = "0 * * * *", 86_400.0


@pytest.mark.parametrize(
    ("missed", "now", "fire", "skipped"),
    [
        ("one", 3600.0, (3600.0,), 0),
        ("one", 3 * 3600.0 + 59, (10_800.0,), 2),
        ("skip", 3 * 3600.0 + 59, (10_800.0,), 2),
        ("skip", 3 * 3600.0 + 61, (), 3),
        ("all", 3 * 3600.0 + 61, (3600.0, 7200.0, 10_800.0), 0),
    ],
)
def test_missed_policy_decides_which_ticks_are_due(
    missed: str, now: float, fire: tuple[float, ...], skipped: int
) -> None:
    due = schedule_policy.due(Cron(at=HOURLY, missed=missed), 3600.0, now)  # type: ignore[arg-type]  # one of its words
    assert due == schedule_policy.Due(fire, skipped, more=False)


def test_newest_ticks_are_due_when_very_many_were_missed() -> None:
    due = schedule_policy.due(Cron(at="* * * * *", missed="all"), 60.0, 365 * DAY)
    assert (len(due.fire), due.fire[-1], due.more) == (100, 365 * DAY, True)
    assert schedule_policy.due(Cron(at="0 0 1 1 *", missed="all"), 0.0, 400 * DAY).fire == (0.0, 365 * DAY)


def test_jitter_is_bounded_and_constant_per_trigger() -> None:
    cron = Cron(at=HOURLY, jitter_sec=600)
    late = [schedule_policy.jitter(cron, f"trigger-{number}") for number in range(200)]
    assert late == [schedule_policy.jitter(cron, f"trigger-{number}") for number in range(200)]
    assert all(0 <= each < 600 for each in late)
    assert max(late) > 500
    assert min(late) < 100
