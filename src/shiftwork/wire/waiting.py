"""What callers send and get over HTTP about waits, signals, questions and approvals."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.core.task import Fields, Name, Text, Wait
from shiftwork.queue.waits.approvals import Asked
from shiftwork.wire.shapes import Held


class WaitBody(Held):
    """What to wait for: tasks, or under a name a time, a signal or a person's answer."""

    tasks: list[Name] | None = None
    name: Name | None = None
    until: float | None = None
    signal: Name | None = None
    question: Text | None = None
    schema: dict[str, Any] | None = None
    timeout_sec: float | None = None


class WaitReply(msgspec.Struct, frozen=True):
    """How the task stands now: pending while it waits. A wait by name comes with what is known of it."""

    status: str
    wait: Wait | None = None


class SignalBody(Fields):
    """A signal for all tasks that wait for it, or for one."""

    name: Name
    data: Any = None
    task: Name | None = None


class AnswerBody(Fields, kw_only=True):
    value: Any


class DecisionBody(Fields):
    """A person's word, perhaps only on the revision or the version that was looked at."""

    note: Text | None = None
    revision: Name | None = None
    version: int | None = None


class AskedList(msgspec.Struct, frozen=True):
    approvals: list[Asked]
