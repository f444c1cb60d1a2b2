"""Budgets and costs as they are shown."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["agent", "dag", "tree", "day"]
By = Literal["task", "dag", "type", "agent", "model", "day"]


class Budget(msgspec.Struct, frozen=True):
    """The budget and cost of an agent, a DAG, a task with all it spawns, or a workspace on one day."""

    kind: Kind
    id: str
    ceiling_usd: float | None
    spent_usd: float
    granted_usd: float
    """Granted to running attempts and not spent yet."""
    remaining_usd: float | None
    holds_back: bool = False
    """Whether tasks wait because it cannot pay for them."""


class Cost(msgspec.Struct, frozen=True):
    """The cost of one group of attempts; None is the group without a name."""

    by: By
    value: str | None
    cost_usd: float
    tokens_in: int
    tokens_out: int
    attempts: int


class Costs(msgspec.Struct, frozen=True):
    """Costs by group, the highest first. An attempt counts for the time it was claimed at, whenever it reports."""

    costs: list[Cost]
    total_usd: float
    """Of all groups, including those beyond the limit."""
    daily_spend_usd: float
    """Today's cost, in UTC."""
