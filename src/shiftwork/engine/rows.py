"""The task's row as verbs hold it between loading and saving."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from shiftwork.engine.rank import RankFacts
from shiftwork.engine.rank import rank as place_of
from shiftwork.model.states import CLAIMED_STATES, State
from shiftwork.settings.model import Settings
from shiftwork.store.statements import columns_of
from shiftwork.store.store import Row


class TaskRow(msgspec.Struct, kw_only=True):
    """A row of `tasks`, column for column. A verb changes it under the row's lock, then saves it.

    The defaults are those of a new row.
    """

    id: str
    workspace: str
    type: str
    status: str
    hold: str | None = None
    lane: int
    rank: float = 0.0
    ordered_at: float
    rerank_at: float | None = None
    priority: float
    boost: float
    deadline: float | None = None
    path_weight: int = 0
    front: bool = False
    dag_id: str
    root_id: str
    newest_id: str | None = None
    parent_id: str | None = None
    retry_of: str | None = None
    rerun_of: str | None = None
    waiting: int = 0
    blocked_reason: str | None = None
    block_check_at: float | None = None
    attempts: int = 0
    max_attempts: int
    reclaims: int = 0
    rate_limits: int = 0
    round: int = 1
    version: int = 1
    fence: int = 0
    agent_id: str | None = None
    runtime_id: str | None = None
    claimed_at: float | None = None
    started_at: float | None = None
    heartbeat_at: float | None = None
    ack_by: float | None = None
    run_until: float | None = None
    lease_until: float | None = None
    lease_check_at: float | None = None
    available_at: float | None = None
    last_agent_id: str | None = None
    last_runtime_id: str | None = None
    lost_agent_id: str | None = None
    timeout_sec: float | None = None
    validation: str | None = None
    at_most_once: bool = False
    own_settings: bool = False
    tallied: bool = False
    estimated_cost: int | None = None
    budget_id: str | None = None
    charged: bool = False
    granted: int = 0
    cost: int = 0
    attempt_cost: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    external_id: str | None = None
    idempotency_key: str | None = None
    target_agent_id: str | None = None
    issue_id: str | None = None
    trigger_type: str | None = None
    session_id: str | None = None
    work_dir: str | None = None
    force_fresh_session: bool = False
    failure_reason: str | None = None
    cancel_reason: str | None = None
    created_at: float
    updated_at: float
    expires_at: float | None = None
    due_at: float | None = None
    finished_at: float | None = None

    @property
    def state(self) -> State:
        return State(self.status)

    @property
    def held(self) -> bool:
        return self.status in CLAIMED_STATES

    @property
    def aged_from(self) -> float:
        """The earliest moment its wait for an agent can have begun: time before `run_at` does not count."""
        return self.created_at if self.due_at is None else max(self.created_at, self.due_at)

    def rank_facts(self) -> RankFacts:
        return RankFacts(
            self.priority,
            self.boost,
            self.aged_from,
            self.ordered_at,
            self.deadline,
            self.path_weight,
            bool(self.front),
        )

    def place(self, settings: Settings, now: float) -> None:
        """Compute the row's place in its lane."""
        self.rank, self.rerank_at = place_of(self.rank_facts(), settings, now)

    def forget_claim(self) -> None:
        self.agent_id = self.runtime_id = None
        self.ack_by = self.run_until = self.lease_until = self.lease_check_at = None
        self.granted = self.attempt_cost = 0
        self.charged = False


COLUMNS = tuple(field.name for field in msgspec.structs.fields(TaskRow))


def load(row: Row) -> TaskRow:
    return TaskRow(**{name: row[name] for name in COLUMNS})


def to_insert(row: TaskRow) -> tuple[Any, ...]:
    """The row as the statement `insert_tasks` takes it; a new row has no other columns."""
    return _values_of("insert_tasks")(row)


def to_save(row: TaskRow) -> tuple[Any, ...]:
    """The row as the statement `save_tasks` takes it."""
    return _values_of("save_tasks")(row)


@cache
def _values_of(statement: str) -> Callable[[TaskRow], tuple[Any, ...]]:
    return operator.attrgetter(*columns_of(statement))


@cache
def places_of_id() -> tuple[int, ...]:
    """The columns of `insert_tasks` that hold the id of a task that is a DAG and a lineage of its own."""
    return tuple(columns_of("insert_tasks").index(name) for name in ("id", "dag_id", "root_id"))
