"""What whoever pays asks for: budgets, what was spent, and how much may be."""

from __future__ import annotations

from shiftwork.client.handle import Handle, given, new_key
from shiftwork.core.task import Dollars
from shiftwork.queue import check
from shiftwork.queue.money.budgets import Budget, Kind
from shiftwork.queue.money.costs import By, Costs
from shiftwork.wire.budgets import BudgetList


class Spending(Handle):
    """Verbs about money."""

    async def set_budget(self, kind: Kind, id: str | None = None, ceiling_usd: float | None = None) -> Budget:  # noqa: A002  # the budget's own word
        if ceiling_usd is not None:
            ceiling_usd = check.read(ceiling_usd, Dollars, "ceiling_usd")
        body = {**given(kind=kind, id=id), "ceiling_usd": ceiling_usd}
        return await self._send("PUT", "/api/budgets", Budget, body, key=new_key())

    async def budgets(self, kind: Kind | None = None, *, limit: int = 100) -> list[Budget]:
        return (await self._get("/api/budgets", BudgetList, kind=kind, limit=limit)).budgets

    async def costs(
        self, by: By = "type", *, since: float | None = None, until: float | None = None, limit: int = 100
    ) -> Costs:
        return await self._get("/api/costs", Costs, by=by, since=since, until=until, limit=limit)
