"""Money: what was spent, and how much may be."""

from __future__ import annotations

from typing import Any

from shiftwork.core.errors import NotFound
from shiftwork.queue.money.budgets import Budget, Kind
from shiftwork.queue.money.costs import By, Costs
from shiftwork.server.ask import Ask
from shiftwork.server.door import Doors, PageSize, Query
from shiftwork.wire.budgets import BudgetBody, BudgetList

door = Doors("Money")


class BudgetQuery(Query):
    """Which budgets."""

    kind: Kind | None = None
    limit: PageSize = 100


@door("GET /api/budgets", "read", query=BudgetQuery, answer=BudgetList)
async def list_budgets(ask: Ask) -> Any:
    """Budgets with what is spent, granted to running work, and left."""
    return BudgetList(await ask.queue.budgets(ask.query.kind, limit=ask.query.limit))


@door("PUT /api/budgets", "operate", body=BudgetBody, answer=Budget, errors=(NotFound,))
async def set_budget(ask: Ask, body: BudgetBody) -> Any:
    """Set what an agent, a DAG, a task with all it spawns, or a day may cost in all."""
    return await ask.queue.set_budget(body.kind, body.id, body.ceiling_usd)


class CostQuery(Query):
    """How costs are grouped, and of which time."""

    by: By = "type"
    since: float | None = None
    until: float | None = None
    limit: PageSize = 100


@door("GET /api/costs", "read", query=CostQuery, answer=Costs)
async def costs(ask: Ask) -> Any:
    """What was spent by task, DAG, type, agent, model or day (UTC), the most first."""
    query = ask.query
    return await ask.queue.costs(query.by, since=query.since, until=query.until, limit=query.limit)
