"""The row of a budget that a transaction is about to insert."""

from __future__ import annotations

from typing import NamedTuple


class NewBudget(NamedTuple):
    """The fields are the columns of the statement `insert_budgets`."""

    id: str
    workspace: str
    kind: str
    owner: str
    parent_id: str | None = None
    ceiling: int | None = None
    spent: int = 0
    counted_to: str | None = None
    """The task up to which existing tasks are counted in; None once all are."""
