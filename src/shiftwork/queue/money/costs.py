"""What was spent, grouped by what it has in common."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from shiftwork.core import ids
from shiftwork.core.task import dollars
from shiftwork.queue.money.purse import day_begins, day_of
from shiftwork.store.store import Row, Tx

By = Literal["task", "dag", "type", "agent", "model", "day"]
WAYS: tuple[str, ...] = get_args(By)
_NO_END = 1e308


class Cost(msgspec.Struct, frozen=True):
    """What attempts with one thing in common have cost; None is what nobody named."""

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
    """Of all groups, also those behind the limit."""
    daily_spend_usd: float
    """Of today, in UTC."""


async def report(tx: Tx, workspace: str, by: By, since: float, until: float | None, count: int) -> Costs:
    """Also what runs now, as far as it has reported."""
    span = {"workspace": workspace, "since": since, "until": _NO_END if until is None else until}
    groups = await tx.all("cost_groups", by=by, count=count, **span)
    total = await tx.one("spent_between", **span)
    today = await tx.one("spent_since", workspace=workspace, since=day_begins(tx.now))
    assert total is not None
    assert today is not None
    return Costs([_cost(by, group) for group in groups], dollars(int(total["cost"])), dollars(int(today["cost"])))


def _cost(by: By, group: Row) -> Cost:
    return Cost(
        by=by,
        value=_shown(by, group["value"]),
        cost_usd=dollars(int(group["cost"])),
        tokens_in=int(group["tokens_in"]),
        tokens_out=int(group["tokens_out"]),
        attempts=int(group["attempts"]),
    )


def _shown(by: By, value: str) -> str | None:
    if by == "task":
        return ids.show_task(value)
    if by == "dag":
        return ids.show_dag(value)
    return day_of(int(value) * 86_400.0) if by == "day" else value or None
