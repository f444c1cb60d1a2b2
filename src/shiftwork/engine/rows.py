"""The task's row as verbs hold it between loading and saving."""

from __future__ import annotations

import operator
from typing import Any

import msgspec

from shiftwork.engine.rank import RankFacts
from shiftwork.engine.rank import rank as place_of
from shiftwork.model.states import CLAIMED_STATES, State
from shiftwork.settings.model import Settings
from shiftwork.store.store import Row


class TaskRow(msgspec.Struct):
    """A row of `tasks`, column for column. A verb changes it under the row's lock, then saves it."""

    id: str
    workspace: str
    type: str
    status: str
    hold: str | None
    lane: int
    rank: float
    ordered_at: float
    rerank_at: float | None
    priority: float
    boost: float
    deadline: float | None
    path_weight: int
    front: bool
    dag_id: str
    root_id: str
    newest_id: str | None
    parent_id: str | None
    retry_of: str | None
    rerun_of: str | None
    waiting: int
    blocked_reason: str | None
    block_check_at: float | None
    attempts: int
    max_attempts: int
    reclaims: int
    rate_limits: int
    round: int
    version: int
    fence: int
    agent_id: str | None
    runtime_id: str | None
    claimed_at: float | None
    started_at: float | None
    heartbeat_at: float | None
    ack_by: float | None
    run_until: float | None
    lease_until: float | None
    lease_check_at: float | None
    available_at: float | None
    last_agent_id: str | None
    last_runtime_id: str | None
    lost_agent_id: str | None
    timeout_sec: float | None
    validation: str | None
    at_most_once: bool
    own_settings: bool
    tallied: bool
    estimated_cost: int | None
    budget_id: str | None
    charged: bool
    granted: int
    cost: int
    attempt_cost: int
    tokens_in: int
    tokens_out: int
    external_id: str | None
    idempotency_key: str | None
    target_agent_id: str | None
    issue_id: str | None
    trigger_type: str | None
    session_id: str | None
    work_dir: str | None
    force_fresh_session: bool
    failure_reason: str | None
    cancel_reason: str | None
    created_at: float
    updated_at: float
    expires_at: float | None
    due_at: float | None
    finished_at: float | None

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

_SAVED = [
    "id",
    "status",
    "hold",
    "lane",
    "rank",
    "ordered_at",
    "rerank_at",
    "priority",
    "deadline",
    "path_weight",
    "front",
    "newest_id",
    "waiting",
    "blocked_reason",
    "block_check_at",
    "attempts",
    "max_attempts",
    "reclaims",
    "rate_limits",
    "round",
    "version",
    "agent_id",
    "runtime_id",
    "claimed_at",
    "started_at",
    "heartbeat_at",
    "ack_by",
    "run_until",
    "lease_until",
    "lease_check_at",
    "available_at",
    "last_agent_id",
    "last_runtime_id",
    "lost_agent_id",
    "timeout_sec",
    "estimated_cost",
    "charged",
    "granted",
    "cost",
    "attempt_cost",
    "tokens_in",
    "tokens_out",
    "session_id",
    "work_dir",
    "failure_reason",
    "cancel_reason",
    "updated_at",
    "expires_at",
    "due_at",
    "finished_at",
    "own_settings",
    "validation",
    "at_most_once",
    "target_agent_id",
]


_BLANK: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, None),
    **dict.fromkeys(("path_weight", "waiting", "attempts", "reclaims", "rate_limits", "fence", "granted"), 0),
    **dict.fromkeys(("cost", "attempt_cost", "tokens_in", "tokens_out"), 0),
    **dict.fromkeys(("front", "at_most_once", "own_settings", "tallied", "charged", "force_fresh_session"), False),
    "round": 1,
    "version": 1,
    "rank": 0.0,
}


def blank_row(**fields: Any) -> TaskRow:
    """The row of a new task, except for these fields."""
    return TaskRow(**{**_BLANK, **fields})


def load(row: Row) -> TaskRow:
    return TaskRow(**{name: row[name] for name in COLUMNS})


to_save = operator.attrgetter(*_SAVED)
"""The row in the column order of the statement `save_tasks`."""


INSERTED = (
    *("id", "workspace", "type", "status", "hold", "lane", "rank", "ordered_at", "rerank_at", "priority", "boost"),
    *("deadline", "path_weight", "dag_id", "root_id", "parent_id", "retry_of", "rerun_of", "waiting", "block_check_at"),
    *("attempts", "max_attempts", "available_at", "last_agent_id", "last_runtime_id", "timeout_sec", "validation"),
    *("at_most_once", "own_settings", "tallied", "estimated_cost", "budget_id", "external_id", "idempotency_key"),
    *("target_agent_id", "issue_id"),
    *("trigger_type", "session_id", "work_dir", "force_fresh_session", "created_at", "updated_at"),
    *("expires_at", "due_at"),
)
"""The columns of the statement `insert_tasks`; a new row has no other."""

to_insert = operator.attrgetter(*INSERTED)
