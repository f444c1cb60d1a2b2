"""Reads from text when work can continue: seconds, durations, clock times, dates and epochs.

Every pattern is anchored or bounded, so the time taken grows with the length of the text and no faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAY_SEC = 86_400.0
MAX_SEC = 366 * DAY_SEC
"""The longest possible limit; a larger number is not a time."""

JUST_PASSED_SEC = 1_800.0
"""A clock time that passed less than this ago means today, not tomorrow: the message is late."""

MAX_ANCHORS = 64
MAX_TAIL_LENGTH = 72
"""How many characters after an anchor to search."""


class Reset(NamedTuple):
    """When to continue: in how many seconds, and at which time if the text names one."""

    wait_sec: float
    at: float | None = None


_ANCHOR = re.compile(
    r"\b(?:"
    r"(?P<milliseconds>retry[-_ ]?after[-_ ]?ms)"
    r"|(?P<seconds>retry[-_ ]?after(?:[-_ ]?(?:sec|secs|seconds))?|resets?[-_ ](?:in|after)[-_ ]seconds)"
    r"|(?:re)?try(?:ing)?(?: again)? (?:in|at|after|on)"
    r"|retry[-_]?delay"
    r"|resets?(?:[-_](?:requests|tokens))?(?:[-_ ]?(?:in|at|on|after|time))?"
    r"|available(?: again)? (?:in|at|on)"
    r"|please wait(?: for)?|wait for"
    r")\b|limit reached(?=\|)",
    re.IGNORECASE,
)
_LEAD = re.compile(r"[\s\"'`:=|\\~]{0,8}(?:about |approximately |the |at |in |on )?", re.IGNORECASE)

_EPOCH = re.compile(r"(\d{10}|\d{13})(?:\.\d{1,9})?(?![\d.])")
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:\.\d{1,9})?[ ]?(Z|UTC|GMT|[+-]\d\d:?\d\d)?", re.IGNORECASE
)
_PART = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)[ ]{0,2}"
    r"(?:(?P<ms>ms|milliseconds?)|(?P<s>s|secs?|seconds?)|(?P<m>m|mins?|minutes?)"
    r"|(?P<h>h|hrs?|hours?)|(?P<d>d|days?)|(?P<w>w|weeks?))(?![a-z])",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[ ,]{0,3}(?:and )?", re.IGNORECASE)
_UNIT_SEC = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": DAY_SEC, "w": 7 * DAY_SEC}
_MAX_PARTS = 6
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?![\d:/-])")

_CLOCK = re.compile(
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?(?::\d\d)?[ ]?(?P<half>[ap]\.?m\b\.?)?"
    r"(?:[ ]{0,2}(?:\((?P<zone>[a-z][\w/+-]{0,40})\)"
    r"|(?P<bare>[a-z]{1,20}(?:/[a-z_+-]{1,30}){1,2}|[PMCE][SD]?T|UTC|GMT|Z)\b))?",
    re.IGNORECASE,
)
_US = {"P": "America/Los_Angeles", "M": "America/Denver", "C": "America/Chicago", "E": "America/New_York"}
_ZONES = {f"{letter}{kind}": name for letter, name in _US.items() for kind in ("T", "ST", "DT")}
"""Abbreviations that providers use; others are ambiguous and not accepted."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DATE = re.compile(
    r"(?:[a-z]{3,9},? )?(?P<month>" + "|".join(_MONTHS) + r")[a-z]{0,6}\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,? (?P<year>\d{4})\b)?(?:,? at|,)?[ ]?",
    re.IGNORECASE,
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = re.compile(r"(?P<weekday>" + "|".join(_WEEKDAYS) + r")[a-z]{0,6}(?:,? at|,)?[ ]?", re.IGNORECASE)
_TOMORROW = re.compile(r"tomorrow(?:,? at)?[ ]?", re.IGNORECASE)
_HTTP_DATE = re.compile(r"[a-z]{3,9},? [\w :-]{8,40}?GMT", re.IGNORECASE)


def find(text: str, now: float, zone: tzinfo) -> Iterator[tuple[int, Reset]]:
    """Every time that follows a word such as `retry-after` or `resets`, with the position of that word.

    A clock time without a zone is read in `zone`. A reset that has passed is skipped; a `retry-after` that has passed
    means no wait.
    """
    for count, anchor in enumerate(_ANCHOR.finditer(text)):
        if count == MAX_ANCHORS:
            return
        tail = text[anchor.end() : anchor.end() + MAX_TAIL_LENGTH]
        lead = _LEAD.match(tail)
        tail = tail[lead.end() if lead else 0 :]
        found = when(tail, now, zone)
        if found is None and (anchor["seconds"] or anchor["milliseconds"]):
            found = _plain_number(tail, 0.001 if anchor["milliseconds"] else 1.0)
        elif found is not None and anchor["milliseconds"] and found.at is None:
            found = _plain_number(tail, 0.001)
        passed = found is not None and found.at is not None and found.at <= now and not anchor["seconds"]
        if found is not None and not passed:
            yield anchor.start(), found


def when(text: str, now: float, zone: tzinfo) -> Reset | None:
    """The time at the beginning of the text; a plain number does not count, since its unit is unknown."""
    readers: tuple[Callable[[str, float, tzinfo], Reset | None], ...] = (_epoch, _iso, _duration, _http_date, _calendar)
    for read in readers:
        try:
            found = read(text, now, zone)
        except (ValueError, OverflowError):
            continue
        if found is not None and found.wait_sec <= MAX_SEC:
            return found
    return None


def duration(text: str) -> float | None:
    """Seconds of `6m0s`, `1h2m3.5s`, `120ms` or `3 hours 12 minutes`."""
    found = _duration(text.strip(), 0.0, UTC)
    return None if found is None else found.wait_sec


def until(at: float, now: float) -> Reset:
    """A point in time, in seconds or milliseconds since 1970."""
    at = at / 1_000 if at > 1e11 else at  # 1e11 seconds is the year 5138
    return Reset(max(0.0, at - now), at)


def _plain_number(text: str, unit_sec: float) -> Reset | None:
    found = _NUMBER.match(text)
    return None if found is None else Reset(min(float(found[0]) * unit_sec, MAX_SEC))


def _epoch(text: str, now: float, _zone: tzinfo) -> Reset | None:
    found = _EPOCH.match(text)
    if found is None:
        return None
    reset = until(float(found[1]), now)
    return reset if reset.at is not None and reset.at > now - MAX_SEC else None


def _iso(text: str, now: float, _zone: tzinfo) -> Reset | None:
    """An ISO time; UTC without an offset, as in the providers' headers."""
    found = _ISO.match(text)
    if found is None:
        return None
    offset = (found[3] or "Z").upper()
    at = datetime.fromisoformat(f"{found[1]}T{found[2]}{'+00:00' if offset in {'Z', 'UTC', 'GMT'} else offset}")
    return until(at.timestamp(), now)


def _duration(text: str, _now: float, _zone: tzinfo) -> Reset | None:
    seconds, place, parts = 0.0, 0, 0
    while parts < _MAX_PARTS and (part := _PART.match(text, place)) is not None:
        seconds += float(part[1]) * _UNIT_SEC[part.lastgroup or "s"]
        between = _BETWEEN.match(text, part.end())
        place, parts = between.end() if between else part.end(), parts + 1
    return Reset(min(seconds, MAX_SEC)) if parts else None


def _http_date(text: str, now: float, _zone: tzinfo) -> Reset | None:
    found = _HTTP_DATE.match(text)
    if found is None:
        return None
    try:
        at = parsedate_to_datetime(found[0])
    except TypeError:
        return None
    return until(at.timestamp(), now)


def _calendar(text: str, now: float, zone: tzinfo) -> Reset | None:
    """`3pm (Europe/Berlin)`, `14:30`, `tomorrow at 9am`, `Mon 12:00 AM`, `Nov 21st, 2026 10:04 AM`."""
    head = _DATE.match(text) or _WEEKDAY.match(text) or _TOMORROW.match(text)
    clock = _CLOCK.match(text, head.end() if head else 0)
    named = clock is not None and (clock["half"] or clock["minute"])
    if clock is None or not named:
        if head is None or head.re is _TOMORROW:
            return None
        clock = None  # a date alone means its beginning
    zone = _zone_named(clock["zone"] or clock["bare"], zone) if clock is not None else zone
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    hour, minute = (0, 0) if clock is None else _hour_and_minute(clock)
    day = _day(head, today, now, timedelta(hours=hour, minutes=minute))
    return until(day.replace(hour=hour, minute=minute).timestamp(), now)


def _day(head: re.Match[str] | None, today: datetime, now: float, clock: timedelta) -> datetime:
    """Midnight of the day that is meant: the next one that is not long past."""
    if head is None:
        passed = (today + clock).timestamp() < now - JUST_PASSED_SEC
        return today + timedelta(days=1) if passed else today
    if "month" in head.re.groupindex:
        month = _MONTHS.index(head["month"].lower()) + 1
        if head["year"]:
            return today.replace(year=int(head["year"]), month=month, day=int(head["day"]))
        day = today.replace(month=month, day=int(head["day"]))
        return day if day >= today - timedelta(days=1) else day.replace(year=day.year + 1)
    if "weekday" in head.re.groupindex:
        ahead = (_WEEKDAYS.index(head["weekday"].lower()) - today.weekday()) % 7
        passed = ahead == 0 and (today + clock).timestamp() < now - JUST_PASSED_SEC
        return today + timedelta(days=7 if passed else ahead)
    return today + timedelta(days=1)


def _hour_and_minute(clock: re.Match[str]) -> tuple[int, int]:
    hour, minute, half = int(clock["hour"]), int(clock["minute"] or 0), (clock["half"] or "").lower()
    if half:
        if not 1 <= hour <= 12:  # a 12-hour clock
            raise ValueError(clock[0])
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    return hour, minute


def _zone_named(name: str | None, zone: tzinfo) -> tzinfo:
    """The named zone; an unknown one raises `ValueError`, since a guess could be hours off."""
    if name is None:
        return zone
    if name.upper() in {"UTC", "GMT", "Z"}:
        return UTC
    try:
        return ZoneInfo(_ZONES.get(name.upper(), name))
    except (OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(name) from error
