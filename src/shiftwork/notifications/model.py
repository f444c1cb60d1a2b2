"""Sinks, notifications and their deliveries, as callers see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from shiftwork.model.task import Name
from shiftwork.observe.alert_kinds import Severity

ALERT = "alert.raised"
TEST = "sink.test"
ALL = "*"
Kind = Literal["webhook", "slack", "email", "apprise"]
Status = Literal["pending", "sent", "dead"]
Address = Annotated[str, Meta(min_length=1, max_length=2000)]
Secret = Annotated[str, Meta(min_length=1, max_length=500)]
MessageBuffer = Annotated[list[Name], Meta(max_length=100)]


class SinkFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sink's filter: by default, all alerts and no events."""

    alerts: MessageBuffer = msgspec.field(default_factory=lambda: [ALL])
    """Kinds of alert; `*` is every kind."""
    severity: Severity = "info"
    """The minimum severity of an alert."""
    events: MessageBuffer = []
    """Names of events, such as `task.completed` or `task.*`."""
    types: MessageBuffer = []
    """Only about tasks of these types; by default, about anything."""
    creators: MessageBuffer = []
    """Only alerts for these creators of tasks."""


ALL_ALERTS = SinkFilter()


class Sink(msgspec.Struct, frozen=True):
    """A sink, without its secret and without the secret parts of its URL."""

    id: str
    name: str
    workspace_id: str
    kind: Kind
    address: str
    server: str | None
    sender: str | None
    wants: SinkFilter
    allow_private: bool
    status: Literal["active", "resting", "failing", "paused"]
    """`resting` after failures in a row; `failing` once a notification has been given up, until one arrives."""
    created_at: float
    created_by: str
    paused_at: float | None
    pause_reason: str | None
    rests_until: float | None
    last_error: str | None


class AddedSink(msgspec.Struct, frozen=True):
    """A new sink: the only time that a generated secret is shown."""

    sink: Sink
    secret: str | None

    def __repr__(self) -> str:
        """Without the secret, which must not appear in a log or a traceback."""
        return f"AddedSink(sink={self.sink!r})"


class SlackAnswer(msgspec.Struct, frozen=True):
    """The result of a pressed button."""

    status: Literal["accepted", "refused", "ignored"]
    text: str
    task_id: str | None = None


class SinkTarget(NamedTuple):
    """How to reach a sink, with its secrets."""

    kind: Kind
    address: str
    secret: str | None
    server: str | None
    sender: str | None
    allow_private: bool


class Notification(msgspec.Struct, frozen=True):
    """The body of a webhook: `type` is the name of an event, `alert.raised` or `sink.test`."""

    type: str
    timestamp: str
    data: dict[str, Any]


class Delivery(msgspec.Struct, frozen=True):
    """One notification to one sink. Its id is the same at every attempt, so that a receiver can detect repeats."""

    id: str
    workspace_id: str
    sink: str
    type: str
    """The event's name, `alert.raised` or `sink.test`."""
    seq: int | None
    """The number of the event or alert."""
    status: Status
    attempts: int
    created_at: float
    next_at: float | None
    """When it will be sent, while it is pending."""
    ended_at: float | None
    error: str | None
    """Why the last attempt failed."""
    message: str
    notification: Notification | None = None
    """The content; only when a single delivery is read."""


class OutgoingDelivery(NamedTuple):
    """A delivery that is being sent."""

    id: str
    sink_id: str
    attempts: int
    give_up_at: float
    notification: Notification
    place: SinkTarget
