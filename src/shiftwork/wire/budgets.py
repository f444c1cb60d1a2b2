"""What travels over HTTP about money."""

from __future__ import annotations

import msgspec

from shiftwork.core.task import Dollars, Fields, Name
from shiftwork.queue.money.budgets import Budget, Kind


class BudgetBody(Fields, kw_only=True):
    """Which budget, and what it may cost in all; null is no limit. A day has no id: every day has the same."""

    kind: Kind
    id: Name | None = None
    ceiling_usd: Dollars | None


class BudgetList(msgspec.Struct, frozen=True):
    """Agents that have a budget, then days, then DAGs and trees, the newest first."""

    budgets: list[Budget]
