"""Which alerts and events a sink is told of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from shiftwork.core.alerts import KINDS, Severity
from shiftwork.core.events import chosen, every_name
from shiftwork.core.notifications import ALERT
from shiftwork.core.task import Fields, Name

ALL = "*"
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
Words = Annotated[list[Name], Meta(max_length=100)]


class Wants(Fields):
    """What a sink is told of: all alerts and no events, unless it says otherwise."""

    alerts: Words = msgspec.field(default_factory=lambda: [ALL])
    """Kinds of alert; `*` is every kind."""
    severity: Severity = "info"
    """The least severity of an alert."""
    events: Words = []
    """Names of events, as `task.completed` or `task.*`."""
    types: Words = []
    """Only what is about tasks of these types; without, about anything."""
    creators: Words = []
    """Only alerts that are meant for these creators of tasks."""


class About(NamedTuple):
    """What a filter looks at in an alert."""

    kind: str
    severity: Severity
    type: str | None
    creator: str | None


def wrong(wants: Wants) -> tuple[str, str] | None:
    """Where such a filter is wrong and why; None for a good one."""
    if not wants.alerts and not wants.events:
        return "wants", "a sink that wants neither alerts nor events is never told anything"
    unknown = [kind for kind in wants.alerts if kind != ALL and kind not in KINDS]
    if unknown:
        return "wants.alerts", f"there is no kind of alert {unknown[0]!r}"
    names = every_name() - {ALERT}
    for pattern in wants.events:
        if not chosen(pattern, names):
            return "wants.events", f"there is no event {pattern!r}"
    return None


def wants_alert(wants: Wants, about: About) -> bool:
    return (
        (ALL in wants.alerts or about.kind in wants.alerts)
        and SEVERITIES.index(about.severity) >= SEVERITIES.index(wants.severity)
        and (not wants.types or about.type in wants.types)
        and (not wants.creators or about.creator in wants.creators)
    )


def wanted_names(wants: Wants, names: Iterable[str], type_: str | None) -> list[str]:
    """Of the names one event has, those a sink wants to hear. Alerts are told by themselves, with their words."""
    if wants.types and type_ not in wants.types:
        return []
    return [name for name in names if name != ALERT and any(chosen(pattern, [name]) for pattern in wants.events)]
