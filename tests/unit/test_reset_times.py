"""Reset times in every form that providers use."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from shiftwork.providers import reset_times

NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC).timestamp()
"""A Tuesday."""


def waits(text: str, zone: str = "UTC") -> list[float]:
    return [reset.wait_sec for _, reset in reset_times.find(text, NOON, ZoneInfo(zone))]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("retry-after: 30", 30),
        ("HTTP 429, Retry-After: 30\r\nServer: x", 30),
        ('{"error": "slow down", "retry_after": 2.5}', 2.5),
        ("'Retry-After': '17'", 17),
        ('"retryAfter": 12', 12),
        ("retry-after-ms: 1500", 1.5),
        ("please retry after 45 seconds", 45),
        ("retry after 2 minutes", 120),
        ("retry-after=1500ms", 1.5),
        ("retry-after: 1h", 3600),
        ("retry-after: 999999999h", 366 * 86_400),
        ("retry-after: 30 more tries follow", 30),
        ("Retry-After: Tue, 17 Nov 2026 12:01:30 GMT", 90),
        ("Retry-After: Tue, 17 Nov 2026 11:58:30 GMT", 0),
        ("Please try again in 20s.", 20),
        ("Please try again in 7.66s.", 7.66),
        ("try again in 3 hours 12 minutes.", 11_520),
        ("try again in 2 days", 172_800),
        ("try again in 4 days 20 hours 9 minutes.", 418_140),
        ("Please try again in 11m42.336s", 702.336),
        ("Please wait 30 seconds before trying again", 30),
        ("Please retry in 22.479525119s", 22.479525119),
        ('"retryDelay": "34s"', 34),
        ("Your quota will reset after 15h22m5s.", 55_325),
        ("x-ratelimit-reset-requests: 6m0s", 360),
        ("x-ratelimit-reset-tokens: 1h2m3.5s", 3_723.5),
        ("x-ratelimit-reset-tokens: 120ms", 0.12),
        ("anthropic-ratelimit-requests-reset: 2026-11-17T12:05:00Z", 300),
        ("resets at 2026-11-17 14:00:00+01:00", 3_600),
        ("Claude AI usage limit reached|1794920400", 3_600),
        ('"resets_at":1794920400', 3_600),
        ('"resetsAt":1794920400000', 3_600),
        ('"resets_in_seconds":13872', 13_872),
        ("resets 3pm (Europe/Berlin)", 7_200),
        ("resets 2:30pm (Europe/Paris)", 5_400),
        ("resets at 14:30", 9_000),
        ("resets 5am PST", 3_600),
        ("Your limit will reset at 12am.", 43_200),
        ("resets at 11:00", 82_800),
        ("try again at 3:05 PM.", 11_100),
        ("try again at Nov 21st, 2026 10:04 AM.", 338_640),
        ("resets Nov 21, 10am (Europe/Berlin)", 334_800),
        ("resets Nov 21 at 10am (Europe/Berlin)", 334_800),
        ("resets Jan 3, 9am (UTC)", 4_050_000),
        ("resets Dec 1", 1_166_400),
        ("resets Mon 12:00 AM", 475_200),
        ("resets Tue 11:00 AM", 601_200),
        ("resets tomorrow at 9am", 75_600),
    ],
)
def test_wait_is_read_from_text(text: str, seconds: float) -> None:
    assert waits(text) == [pytest.approx(seconds)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "retry-after",
        "retry-after: tomorrow",
        "try again in 30",
        "resets 25:99",
        "resets 13pm",
        "resets Nov 31, 10am",
        "resets 3pm (Mars/Olympus)",
        "resets 3pm (IST)",
        "resets 5",
        "Claude AI usage limit reached|12",
        "resets_at: 1200000000",
        "the reset of 3 counters",
        "presets 3pm",
        "retry the test",
    ],
)
def test_no_wait_is_read_from_other_text(text: str) -> None:
    assert waits(text) == []


@pytest.mark.parametrize(("zone", "seconds"), [("UTC", 9_000), ("Europe/Berlin", 5_400), ("America/New_York", 27_000)])
def test_clock_time_without_a_zone_uses_the_given_zone(zone: str, seconds: float) -> None:
    assert waits("resets at 14:30", zone) == [seconds]


def test_clock_time_just_passed_is_not_tomorrow() -> None:
    assert waits("resets at 11:45") == waits("resets 12pm (UTC)") == []
    assert waits("resets at 11:15") == [pytest.approx(83_700)]


def test_clock_times_follow_the_change_to_winter_time() -> None:
    saturday = datetime(2026, 10, 24, 22, 0, tzinfo=UTC).timestamp()  # midnight in Berlin; clocks go back at three
    ((_, reset),) = reset_times.find("resets 5am (Europe/Berlin)", saturday, UTC)
    assert reset.wait_sec == 6 * 3_600


def test_durations_in_headers_are_parsed() -> None:
    assert [reset_times.duration(text) for text in ("6m0s", "1h2m3.5s", "120ms", "1s", "soon", "")] == [
        360,
        3_723.5,
        0.12,
        1,
        None,
        None,
    ]
