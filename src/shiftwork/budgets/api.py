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
        """Set what an agent, a DAG, a task with all it spawns (`tree`) or a `day` may cost in all; None for no limit.

        A day has no id: every day has the same budget.
        """

    @operation("GET /api/costs", "read")
    async def costs(
        self, by: By = "type", *, since: Time | None = None, until: Time | None = None, limit: PageSize = 100
    ) -> Costs:
        """Return what was spent by task, DAG, type, agent, model or day (UTC), the most first."""

    @operation("GET /api/budgets", "read", envelope="budgets")
    async def list(self, kind: Kind | None = None, *, limit: PageSize = 100) -> list[Budget]:
        """Return budgets with their ceiling and what is spent, granted to running work, and left.

        Agents that have a budget come first, then days, then DAGs and trees, the newest first.
        """
