"""Circuit breakers, cooldowns, limits, quotas and backpressure as callers see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shiftwork.model.bounds import MAX_NAME, MAX_NUMBER

State = Literal["closed", "open", "half-open"]
"""The state of a circuit breaker."""

GateName = Literal["paused", "breaker_open", "cooldown", "limit", "account", "budget"]


class Breaker(msgspec.Struct, frozen=True):
    """The circuit breaker of one type, and the rules in force for it; without rules it is switched off."""

    type: str
    state: State
    failures: int
    last_failure: float | None
    opened_at: float | None
    half_open_at: float | None
    tested_task_id: str | None
    """The task that is running as a test."""
    closed_until: float | None
    """When the next test task may run, while it is not closed."""
    enabled: bool
    failure_threshold: int | None
    half_open_after: float | None
    cooldown_seconds: float | None


class Cooldown(msgspec.Struct, frozen=True):
    """A cooldown: its key, its end, and whether it is for one agent or all."""

    key: str
    provider: str | None
    account: str | None
    model: str | None
    type: str | None
    agent_id: str | None
    since: float
    until: float | None
    """Null if credentials were refused: it lasts until it is lifted."""
    reason: str | None
    by: str


class LimitInForce(msgspec.Struct, frozen=True):
    """A limit and its current use."""

    key: str
    requests: int | None
    tokens: int | None
    tokens_per_task: int | None
    window_sec: float | None
    concurrency: int | None
    held: int
    requests_used: int
    tokens_used: int
    opens_at: float | None
    """When there will be room for another task, if there is none now; null if a running task has to end first."""
    full: bool
    set_at: float
    set_by: str


class BreakerTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """The breaker rules of all types, or of one."""

    failure_threshold: Annotated[int, Meta(ge=0, le=int(MAX_NUMBER))] | None = None
    cooldown_seconds: Annotated[float, Meta(ge=0, le=MAX_NUMBER)] | None = None
    half_open_after: Annotated[float, Meta(ge=0, le=MAX_NUMBER)] | None = None

    def settings(self) -> dict[str, Any]:
        """The equivalent settings."""
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return {f"circuit_breaker.{name}": value for name, value in named.items() if value is not None}


class BreakerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules of all breakers: those of every type, and those of single types."""

    defaults: BreakerTerms = BreakerTerms()
    overrides: dict[Annotated[str, Meta(min_length=1, max_length=MAX_NAME)], BreakerTerms] = {}


class QuotaInForce(msgspec.Struct, frozen=True):
    """A workspace's quota and its use. Only what has a limit is counted."""

    workspace: str
    max_tasks: int | None = None
    max_bytes: int | None = None
    submits_per_minute: int | None = None
    tasks: int | None = None
    bytes: int | None = None
    room: int | None = None
    """How many tasks may be submitted now within the rate."""
    set_at: float | None = None
    set_by: str | None = None


class Backpressure(msgspec.Struct, frozen=True):
    """How full the queue is, for producers. Only what has a limit is counted."""

    state: Literal["normal", "warning", "critical"]
    full: list[str]
    """Levels without free places: such a task is refused, or displaces a less urgent one."""
    waiting: dict[str, int]
    limits: dict[str, int | None]
    room: dict[str, int | None]
    """How many more tasks of each level find room; null means no limit."""
    warnings: list[str]
    retry_after_sec: float | None
    """When to try again, if a level is full."""


class Closed(msgspec.Struct, frozen=True):
    """A closed gate: for everything (`*`), a type, or a key of provider, account, model and type."""

    gate: GateName
    scope: str
    until: float | None = None
