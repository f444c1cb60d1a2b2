"""Agents and the runtimes that host them, as callers see them."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from shiftwork.model.reports import Instruction
from shiftwork.model.task import Dollars, Fields, Name

AgentStatus = Literal["active", "draining", "offline", "failed"]
MaxTasks = Annotated[int, Meta(ge=1, le=100000)]
Seconds = Annotated[float, Meta(gt=0)]


class NewAgent(Fields):
    """An agent that registers. A field that is not given has no limit, except `max_concurrent_tasks`."""

    id: Name
    type: Name | None = None
    types: list[Name] | None = None
    capabilities: list[Name] = []
    models_available: list[Name] = []
    provider: Name | None = None
    """The provider and account it uses: agents that share them share their limits."""
    account: Name | None = None
    accounts: list[Name] = []
    """Several accounts of this provider that it can use; each claim names one."""
    max_concurrent_tasks: MaxTasks | msgspec.UnsetType | None = msgspec.UNSET
    budget_remaining_usd: Dollars | None = None
    poll_interval_sec: Seconds | None = None
    claim_ttl_sec: Seconds | None = None
    isolation_group: Name | None = None
    restarted: bool = False
    """Its program has restarted and does not know what it held: recover its claims."""


class AgentFields(TypedDict, total=False):
    """The fields of a `NewAgent`, for `agents.register(id=..., types=...)`."""

    id: str
    type: str | None
    types: list[str] | None
    capabilities: list[str]
    models_available: list[str]
    provider: str | None
    account: str | None
    accounts: list[str]
    max_concurrent_tasks: int | None
    budget_remaining_usd: float | None
    poll_interval_sec: float | None
    claim_ttl_sec: float | None
    isolation_group: str | None
    restarted: bool


class Agent(msgspec.Struct, frozen=True):
    """An agent, its claims, and its costs."""

    id: str
    workspace_id: str
    type: str | None
    types: list[str] | None
    capabilities: list[str]
    models_available: list[str]
    provider: str | None
    account: str | None
    accounts: list[str]
    """All accounts that it can use."""
    max_concurrent_tasks: int | None
    current_tasks: int
    status: str
    idle: bool
    budget_remaining_usd: float | None
    spent_usd: float
    granted_usd: float
    poll_interval_sec: float
    claim_ttl_sec: float | None
    heartbeat_interval_sec: float
    isolation_group: str | None
    registered_at: float
    last_heartbeat: float


class Runtime(msgspec.Struct, frozen=True):
    """A process that hosts agents. It is offline after a silence of `runtime_offline_sec`."""

    id: str
    status: str
    last_heartbeat: float | None
    last_seen: float
    held: int


class RuntimeHeartbeat(msgspec.Struct, frozen=True):
    """Claims that a runtime must stop; its other claims continue."""

    cancel: dict[str, str | None]
    lost: list[str]
    unnamed: list[str]
    """Claims that it holds but did not name: new ones, or those whose answer was lost."""
    slow_down_sec: float | None = None
    yields: dict[str, str] = {}
    """Claims asked to yield their task, and for which urgent task."""
    instructions: dict[str, list[Instruction]] = {}
    """By claim: instructions sent to its holder and not yet acknowledged, in order."""
