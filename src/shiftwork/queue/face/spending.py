"""What whoever pays asks for: budgets, what was spent, and how much may be."""

from __future__ import annotations

from shiftwork.core.errors import InputError
from shiftwork.core.task import Dollars
from shiftwork.queue import check
from shiftwork.queue.face.handle import Handle
from shiftwork.queue.money import budgets, costs
from shiftwork.queue.money.budgets import Budget, Kind
from shiftwork.queue.money.costs import By, Costs
from shiftwork.queue.money.purse import day_of


class Spending(Handle):
    """Verbs about money."""

    async def set_budget(self, kind: Kind, id: str | None = None, ceiling_usd: float | None = None) -> Budget:  # noqa: A002  # the budget's own word
        """What an agent, a DAG, a task with all it spawns (`tree`) or a `day` may cost in all; None for no limit."""
        if ceiling_usd is not None:
            ceiling_usd = check.read(ceiling_usd, Dollars, "ceiling_usd")
        owner = await self._payer(kind, id)
        try:
            changed = await self._run(budgets.set_ceiling, self.workspace, kind, owner, ceiling_usd)
        finally:
            self._engine.book.forget(self.workspace)
        return changed if kind in {"agent", "day"} else await self._follow_up(changed, owner)

    async def _payer(self, kind: Kind, name: str | None) -> str:
        check.one_of(kind, budgets.KINDS, "kind")
        if kind == "day":
            if name is not None:
                raise InputError("every day has the same budget", where="id", mend="Leave the id out.")
            return day_of(self._engine.store.now())
        named = check.name(name or "", "id")
        return named if kind == "agent" else self._find_dag(named) if kind == "dag" else await self._find(named)

    async def _follow_up(self, changed: Budget, owner: str) -> Budget:
        """What follows from the new ceiling is done when this answers; whoever is interrupted leaves it to the duty."""
        while True:
            changed, more = await self._run(budgets.settle, self.workspace, changed.kind, owner)
            if not more:
                return changed

    async def budgets(self, kind: Kind | None = None, *, limit: int = 100) -> list[Budget]:
        """Budgets with what is spent, granted and left: agents, days, then DAGs and trees, the newest first."""
        if kind is not None:
            check.one_of(kind, budgets.KINDS, "kind")
        count = check.page(limit)
        return await self._read(lambda tx: budgets.read(tx, self._engine, self.workspace, kind, count))

    async def costs(
        self, by: By = "type", *, since: float | None = None, until: float | None = None, limit: int = 100
    ) -> Costs:
        """What was spent by task, DAG, type, agent, model or day (UTC), the most first."""
        check.one_of(by, costs.WAYS, "by")
        count = check.page(limit)
        return await self._read(lambda tx: costs.report(tx, self.workspace, by, since or 0.0, until, count))
