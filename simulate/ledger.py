"""Audits the day: the money at every event, the end of every task, and how long each waited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from shiftwork import Queue
from shiftwork.model.task import Submitted
from simulate.plan import Arrival


class Ledger:
    """Records budgets, tasks and waits."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._tasks: dict[str, float] = {}
        self.checks = 0
        self.exceeded: list[str] = []
        self.tightest: dict[str, float] = {}
        """The smallest remainder of each kind of budget."""
        self.raised = 0
        self.counts: dict[str, int] = {}
        self.waits: dict[float, list[float]] = defaultdict(list)
        """Seconds from ready to the first claim, by priority."""
        self.spent_usd = 0.0
        self.leaked_usd = 0.0
        self.took_sec = 0.0

    def submitted(self, made: Sequence[Submitted], arrival: Arrival) -> None:
        for task, fields in zip(made, arrival.tasks, strict=True):
            self._tasks[task.id] = fields["priority"]

    async def check(self) -> None:
        """Check that spent and granted money together exceed no budget."""
        self.checks += 1
        for budget in await self._queue.budgets.list(limit=1000):
            if budget.ceiling_usd is None:
                continue
            left = round(budget.ceiling_usd - budget.spent_usd - budget.granted_usd, 6)
            self.tightest[budget.kind] = min(left, self.tightest.get(budget.kind, left))
            if left < 0:
                self.exceeded.append(f"{budget.kind} {budget.id}: {-left:.6f} USD too much")

    async def close(self, took_sec: float) -> None:
        """Record the final state and wait of every task, and grants that were never released."""
        self.took_sec = took_sec
        self.counts = dict((await self._queue.status()).counts)
        for task_id, priority in self._tasks.items():
            self.spent_usd += (await self._queue.get(task_id)).cost_usd
            history = await self._queue.tasks.transitions(task_id)
            ready = next((move.at for move in history if move.to_status == "ready"), None)
            claimed = next((move.at for move in history if move.to_status == "claimed"), None)
            if ready is not None and claimed is not None:
                self.waits[priority].append(claimed - ready)
        self.leaked_usd = sum(budget.granted_usd for budget in await self._queue.budgets.list(limit=1000))
