"""When a schedule fires: the instants of a cron expression in a time zone, including days when clocks change.

A schedule at fixed times fires once for each, as Debian's cron does: a time skipped by a clock change fires at the
first instant after it, and a time that occurs twice fires the first time. A schedule whose minute or hour begins with
`*` fires whenever the clock shows a matching time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from shiftwork.model.errors import InputError
from shiftwork.triggers.model import Cron, Missed

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MAX_MISSED = 100
"""The most missed times to fire for, newest first; earlier ones are reported as skipped."""
LATE_SEC = 60.0
"""A time counts as missed after this long."""
_FIELDS = 5
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class Due(NamedTuple):
    """The instants to fire for now, the number of skipped ones, and whether there were more than counted."""

    fire: tuple[float, ...]
    skipped: int
    more: bool


def check(cron: Cron) -> None:
    """Check that the expression and the zone are valid, and that the schedule ever fires."""
    zone_of(cron.zone)
    if next_after(cron, 0.0) is None:
        raise InputError(f"{cron.at!r} never occurs", where="on.at")


@lru_cache(1024)
def zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # an unknown zone, a folder of zones, an invalid name
        hint = "Use a name from the IANA database, such as Europe/Berlin, America/New_York or UTC."
        raise InputError(f"there is no time zone {name!r}", where="on.zone", hint=hint) from None


def fields(text: str) -> str:
    """The expression behind an alias, or itself."""
    known = ALIASES.get(text.strip().lower(), text.strip())
    wrong = "expected five fields" if len(known.split()) != _FIELDS else _problem(known)
    if wrong is not None:
        hint = "Write minute, hour, day of month, month and day of week, or one of " + ", ".join(sorted(ALIASES)) + "."
        raise InputError(f"{text!r} is not a cron expression: {wrong}", where="on.at", hint=hint)
    return known


def _problem(text: str) -> str | None:
    try:
        CronSim(text, datetime(2000, 1, 1))  # noqa: DTZ001  # only read here
    except CronSimError as error:
        return str(error).lower()
    return None


def next_after(cron: Cron, after: float) -> float | None:
    """The first instant after this one, without jitter; None if there is none."""
    return next(instants(cron, after), None)


def instants(cron: Cron, after: float) -> Iterator[float]:
    """All instants after this one, in order."""
    text, zone = fields(cron.at), zone_of(cron.zone)
    minute, hour = text.split()[:2]
    start = datetime.fromtimestamp(after, UTC)
    found = _fitting(text, zone, start) if "*" in (minute[0], hour[0]) else _fixed(text, zone, start)
    return (instant.timestamp() for instant in found)


def _fixed(text: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """One instant for each time of the calendar; two times may be moved to the same one."""
    # After a clock change the wall time may have occurred before, so begin a day earlier.
    for wall in CronSim(text, _wall(after, zone) - _DAY):
        instant = wall.replace(tzinfo=zone).astimezone(UTC)
        if _wall(instant, zone) != wall:
            instant = _first_after_gap(zone, wall)
        if instant > after:
            after = instant
            yield instant


def _first_after_gap(zone: ZoneInfo, wall: datetime) -> datetime:
    """The instant at which the clock jumps over this wall time."""
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    after = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    changed = _change(zone, before - _SECOND, after)
    return changed if changed is not None else after


def _fitting(text: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Every instant at which the clock shows a matching time, from one clock change to the next."""
    start, last = after, after
    while True:
        offset = _offset(start, zone)
        for wall in CronSim(text, _wall(start, zone) - _SECOND):
            instant = (wall - offset).replace(tzinfo=UTC)
            changed = _change(zone, start, instant)
            if changed is not None:
                start = changed
                break
            start = max(start, instant)
            if instant > last:
                last = instant
                yield instant
        else:
            return


def _change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """The first instant after `start`, up to `end`, at which the offset changes."""
    offset, low = _offset(start, zone), start
    while low < end:
        high = min(low + _DAY, end)
        if _offset(high, zone) != offset:
            while high - low > _SECOND:
                middle = (low + (high - low) / 2).replace(microsecond=0)
                middle = middle if middle > low else high - _SECOND
                low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
            return high
        low = high
    return None


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def shown(instant: float) -> str:
    """Format an instant for keys and facts."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def jitter(cron: Cron, trigger_id: str) -> float:
    """The fixed delay of this schedule."""
    share = int.from_bytes(hashlib.sha256(trigger_id.encode()).digest()[:8], "big") / 2**64
    return cron.jitter_sec * share


def due(cron: Cron, first: float, now: float) -> Due:
    """What to do about the instants from `first` to now, both without jitter."""
    ticks, more = _newest(cron, first, now)
    fire = _choose(cron.missed, ticks, now)
    return Due(fire, len(ticks) - len(fire), more)


def _choose(missed: Missed, ticks: tuple[float, ...], now: float) -> tuple[float, ...]:
    if missed == "all" or not ticks:  # empty if the rules of the zone have changed
        return ticks
    return ticks[-1:] if missed == "one" or now - ticks[-1] <= LATE_SEC else ()


def _newest(cron: Cron, first: float, now: float) -> tuple[tuple[float, ...], bool]:
    """The newest instants since `first`, inclusive, and whether there are more."""
    span = 3600.0
    while True:
        since = max(now - span, first - 1)
        found = [*_until(cron, since, now)]
        if since < first or len(found) >= MAX_MISSED:
            return tuple(found[-MAX_MISSED:]), since >= first or len(found) > MAX_MISSED
        span *= 4


def _until(cron: Cron, after: float, now: float) -> Iterator[float]:
    for instant in instants(cron, after):
        if instant > now:
            return
        yield instant
