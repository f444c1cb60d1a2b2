"""The history of a task and of the queue, as callers see it: events, transitions and attempts."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.model.task import Verdict


class Event(msgspec.Struct, frozen=True):
    """One change as a subscriber sees it; `names` are the events it stands for."""

    seq: int
    at: float
    workspace_id: str
    task_id: str | None
    dag_id: str | None
    verb: str
    names: list[str]
    path: list[str]
    actor: str
    request_id: str | None
    fence: int | None
    reason: str | None
    data: dict[str, Any] | None
    type: str | None = None
    """The task's; None if there is none, or no longer."""


class EventPage(msgspec.Struct, frozen=True):
    """Events after a cursor; continue from `next`, even if there are none."""

    events: list[Event]
    next: int


class Transition(msgspec.Struct, frozen=True):
    """One step of a task from a state to the next; steps taken at once share their `seq`."""

    seq: int
    at: float
    from_status: str
    to_status: str
    verb: str
    actor: str
    reason: str | None
    fence: int | None


class Attempt(msgspec.Struct, frozen=True):
    """One ended execution by one agent."""

    fence: int
    round: int
    agent_id: str
    runtime_id: str | None
    claimed_at: float
    started_at: float | None
    ended_at: float
    outcome: str
    counted: bool
    reason: str | None
    error: str | None
    note: str | None
    cost_usd: float
    verdict: Verdict | None = None


class History(msgspec.Struct, frozen=True):
    """The history of one task: its changes of state, the events, and its attempts."""

    transitions: list[Transition]
    events: list[Event]
    attempts: list[Attempt]
