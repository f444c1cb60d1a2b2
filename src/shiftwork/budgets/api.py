"""Budgets and costs, as callers see them."""

from __future__ import annotations

from shiftwork.budgets.model import Budget, By, Costs, Kind
from shiftwork.model.errors import NotFound
from shiftwork.model.task import Dollars, Name, PageSize
from shiftwork.model.times import Time
from shiftwork.operation.declare import Namespace, operation


class Budgets(Namespace, name="budgets", group="Money"):
    """What agents, DAGs, task trees and days may cost, and what was spent."""

    @operation("PUT /api/budgets", "operate", errors=(NotFound,))
    async def set(self, kind: Kind, id: Name | None = None, *, ceiling_usd: Dollars | None) -> Budget:
        """Set the budget of an agent, a DAG, a task with all it spawns (`tree`) or a `day`; None for no limit.

        A day has no id: the budget applies to every day.
        """

    @operation("GET /api/costs", "read")
    async def costs(
        self, by: By = "type", *, since: Time | None = None, until: Time | None = None, limit: PageSize = 100
    ) -> Costs:
        """Return the cost by task, DAG, type, agent, model or day (UTC), highest first."""

    @operation("GET /api/budgets", "read", envelope="budgets")
    async def list(self, kind: Kind | None = None, *, limit: PageSize = 100) -> list[Budget]:
        """Return budgets with their ceiling and what is spent, granted to running work, and left.

        Agents with a budget come first, then days, then DAGs and trees, newest first.
        """
