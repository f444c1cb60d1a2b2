"""What is told to people and programs: a notification as a webhook carries it, and the line that people read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

ALERT = "alert.raised"
TEST = "sink.test"


class Notification(msgspec.Struct, frozen=True):
    """The body of a webhook: `type` is the name of an event, `alert.raised` or `sink.test`."""

    type: str
    timestamp: str
    data: dict[str, Any]


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(notification: Notification) -> str:
    """One line for people; nothing in it can begin another."""
    data = notification.data
    if notification.type == ALERT:
        told = f"[{data['severity']}] {data['message']}"
    elif notification.type == TEST:
        told = f"Test message to {data['sink']}, sent by {data['actor']}"
    else:
        told = " ".join(part for part in (notification.type, data.get("task_id"), _of(data)) if part)
    return " ".join("".join(c if c.isprintable() else " " for c in told).split())


def _of(data: dict[str, Any]) -> str:
    """What else is known of an event, in brackets."""
    known = [("type", data.get("task_type")), ("reason", data.get("reason")), ("by", data.get("actor"))]
    return "(" + ", ".join(f"{name} {value}" for name, value in known if value) + ")"


def paragraphs(notification: Notification) -> str:
    """The same for a letter: the line, and the facts one below the other."""
    facts = [f"{name}: {_shown(value)}" for name, value in notification.data.items() if value not in (None, {}, [])]
    return "\n".join(
        [line(notification), "", f"at: {notification.timestamp}", f"type: {notification.type}", *facts, ""]
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
