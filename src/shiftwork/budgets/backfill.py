"""Budgets added while work is running: counts earlier costs and open grants, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shiftwork.budgets import policy as budget
from shiftwork.budgets.allocator import BATCH, FIRST, count_ended, to_save
from shiftwork.budgets.policy import span_of
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model.outcome import Token
from shiftwork.model.task import micros
from shiftwork.store.store import Row, Tx

SETTLED_SEC = 5.0
"""How long a new day budget looks for claims of processes that had not read it yet; they read it within a second."""

_Uses = Mapping[Token, tuple[int, int, bool]]
"""By attempt: its grant, its use, and whether it has ended."""


async def count_in(tx: Tx, engine: Engine, found: Row) -> int:
    """Put the next page of tasks under a new budget, with their costs and open grants; returns the page's size."""
    work = UnitOfWork(tx, engine, Caller("maintenance:budgets"))
    return await (_count_day if found["kind"] == "day" else _count_dag)(work, found)


async def _count_dag(work: UnitOfWork, found: Row) -> int:
    tx, place = work.tx, {"dag": found["owner"], "after": found["counted_to"], "count": BATCH}
    page = [row["id"] for row in await tx.all("tasks_to_count", **place)]
    rows = await work.lock(page)
    attempts = await tx.all("read_attempts", items=[(row.id,) for row in rows]) if rows else ()
    uses = {Token(a["task_id"], a["fence"]): (a["granted"], a["cost"], True) for a in attempts}
    settings = (await work.engine.settings_cache.load(tx, found["workspace"])).settings().budget
    uses |= _running([row for row in rows if row.held], micros(settings.default_estimate_usd))
    share = await _charge(tx, found, uses)
    if rows:
        await tx.run("put_under", items=[(row.id,) for row in rows], budget=found["id"])
    # A transaction we waited for may have added a task without this budget: then this page is read again.
    same = page == [row["id"] for row in await tx.all("tasks_to_count", **place)]
    counted_to = found["counted_to"] if not same else page[-1] if len(page) == BATCH else None
    await _save(tx, found, share, {"counted_to": counted_to})
    return len(page)


async def _count_day(work: UnitOfWork, found: Row) -> int:
    """Lock running attempts and charge them from now on; finally, once every process knows, those that ended before."""
    tx, span = work.tx, span_of(found["owner"])
    settings = (await work.engine.settings_cache.as_written(tx, found["workspace"])).settings().budget
    names = {"workspace": found["workspace"], "after": found["counted_to"], "count": BATCH, **span}
    page = [row["id"] for row in await tx.all("claims_to_count", **names)]
    rows = [row for row in await work.lock(page) if row.agent_id is not None]
    paid = [row for row in rows if row.claimed_at is not None and span["since"] <= row.claimed_at < span["until"]]
    share = await _charge(tx, found, _running(paid, micros(settings.default_estimate_usd)))
    if paid:
        await tx.run("charge_claims", items=[(row.id,) for row in paid])
    counted_to = page[-1] if len(page) == BATCH else None
    if counted_to is None and work.now - _made_at(found["id"]) < SETTLED_SEC:
        counted_to = FIRST
    elif counted_to is None:
        share = share._replace(spent=share.spent + await count_ended(tx, found))
    ceiling = (
        None if settings.daily_usd is None else micros(settings.daily_usd)
    )  # for attempts that run while there are no claims
    await _save(tx, found, share, {"counted_to": counted_to, "ceiling": ceiling})
    return len(page)


def _running(rows: Sequence[TaskRow], estimate: int) -> _Uses:
    return {Token(row.id, row.fence): (_granted(row, estimate), row.attempt_cost, False) for row in rows}


def _granted(row: TaskRow, estimate: int) -> int:
    """The assumed grant of an attempt that is already running."""
    return row.granted if row.charged else estimate if row.estimated_cost is None else row.estimated_cost


async def _charge(tx: Tx, found: Row, uses: _Uses) -> budget.BudgetShare:
    """Charge these attempts to a budget; returns the amounts of those not charged before."""
    items = [(*token, found["id"], use[0]) for token, use in sorted(uses.items())]
    fresh = [uses[Token(c["task_id"], c["fence"])] for c in await tx.all("add_charges", items=items)] if items else []
    shares = [budget.share(granted, used, over=over) for granted, used, over in fresh]
    return budget.BudgetShare(sum(share.spent for share in shares), sum(share.granted for share in shares))


async def _save(tx: Tx, found: Row, more: budget.BudgetShare, changes: Mapping[str, Any]) -> None:
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    row |= {**changes, "spent": row["spent"] + more.spent, "granted": row["granted"] + more.granted}
    await tx.run("save_budgets", items=[to_save(row)])


def _made_at(id_: str) -> float:
    """The time at which this UUIDv7 was created."""
    return int(id_.replace("-", "")[:12], 16) / 1000
