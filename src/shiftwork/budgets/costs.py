"""Costs, grouped."""

from __future__ import annotations

from shiftwork.budgets.model import By, Cost, Costs
from shiftwork.budgets.policy import day_begins, day_of
from shiftwork.model import ids
from shiftwork.model.task import dollars
from shiftwork.store.store import Row, Tx

_NO_END = 1e308


async def report(tx: Tx, workspace: str, by: By, since: float, until: float | None, count: int) -> Costs:
    """Includes running attempts, as far as they have reported."""
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
