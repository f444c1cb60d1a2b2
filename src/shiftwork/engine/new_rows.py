"""Rows that a transaction is about to insert; the fields are the columns of the statement that inserts them."""

from __future__ import annotations

from typing import NamedTuple


class NewAttempt(NamedTuple):
    """The only row of an attempt, written at its end (`insert_attempts`)."""

    task_id: str
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
    cost: int
    granted: int
    """What a lost attempt may have spent, until a late report corrects it."""
    result: str | None
    verdict: str | None


class NewDeadLetter(NamedTuple):
    """A dead letter of a task's round (`insert_dead_letters`)."""

    task_id: str
    round: int
    workspace: str
    type: str
    reason: str
    error: str | None
    signature: str
    attempts: int
    poison_pill: bool
    dead_lettered_at: float


class NewAlert(NamedTuple):
    """Something that a person should look at (`insert_alerts`)."""

    at: float
    workspace: str
    kind: str
    severity: str
    message: str
    task_id: str | None
    data: str


class NewDag(NamedTuple):
    """A DAG of several tasks, which are counted when they are written (`insert_dags`)."""

    id: str
    workspace: str
    title: str | None
    created_by: str
    created_at: float
    status: str = "open"
    open: int = 0


class NewEdge(NamedTuple):
    """A dependency, between the roots of two lineages (`insert_edges`)."""

    dependent: str
    dependency: str
    satisfied: bool
    waits: bool = False
    """Whether the dependent is a parent that waits for its subtasks."""
