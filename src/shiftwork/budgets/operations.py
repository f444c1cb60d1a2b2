"""Sets and reads budgets of agents, DAGs, task trees and days, maintains them, and reports costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from shiftwork.budgets import costs
from shiftwork.budgets import policy as budget
from shiftwork.budgets.allocator import (
    BATCH,
    FIRST,
    BudgetAllocator,
    Level,
    free_held,
    hold_under,
    to_save,
    today,
)
from shiftwork.budgets.api import Budgets
from shiftwork.budgets.backfill import count_in
from shiftwork.budgets.booking import dag_of, shown, usd, words
from shiftwork.budgets.membership import NewBudget
from shiftwork.budgets.model import Budget, By, Costs, Kind
from shiftwork.budgets.policy import day_begins, day_of
from shiftwork.engine.engine import Caller, Engine
from shiftwork.engine.lanes import wake_all
from shiftwork.engine.read import find_dag
from shiftwork.engine.rows import TaskRow
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import InputError, NotFound
from shiftwork.model.task import dollars, micros
from shiftwork.model.times import Time, epoch
from shiftwork.operation.local import Call, implements, reading
from shiftwork.settings.operations import change_setting
from shiftwork.settings.resolve import Resolver
from shiftwork.store.store import Row, Tx


@implements(Budgets.set)
async def set_budget(call: Call, kind: Kind, id: str | None = None, *, ceiling_usd: float | None) -> Budget:
    owner = await _owner(call, kind, id)
    try:
        changed = await call.run(set_ceiling, call.workspace, kind, owner, ceiling_usd)
    finally:
        call.engine.settings_cache.forget(call.workspace)
    more = kind in {"dag", "tree"}
    while more:  # an interrupted caller leaves the rest to maintenance
        changed, more = await call.run(settle_budget, call.workspace, kind, owner)
    return changed


async def _owner(call: Call, kind: Kind, name: str | None) -> str:
    if kind == "day":
        if name is not None:
            raise InputError("every day has the same budget", where="id", hint="Leave the id out.")
        return day_of(call.engine.store.now())
    if name is None:
        raise InputError("must not be empty", where="id")
    return name if kind == "agent" else find_dag(name) if kind == "dag" else await call.find(name)


async def set_ceiling(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, kind: Kind, owner: str, ceiling: float | None
) -> Budget:
    """Change the ceiling of a budget, None for no limit; a DAG without a budget gets one."""
    if kind == "day":
        return await _set_day(tx, engine, caller, workspace, ceiling)
    work = UnitOfWork(tx, engine, caller)
    amount = None if ceiling is None else micros(ceiling)
    if kind == "agent":
        row: Mapping[str, Any] = await _set_agent(tx, workspace, owner, amount)
    else:
        row = await change(work, workspace, kind, owner, amount)
    event_data = {"budget": kind, "id": shown(row), "ceiling_usd": ceiling}
    work.emit_for(workspace, "budget_changed", dag_id=dag_of(row), data=event_data)
    await work.save_events()
    return _budget(row)


async def _set_day(tx: Tx, engine: Engine, caller: Caller, workspace: str, ceiling: float | None) -> Budget:
    row = await _limit_day(tx, engine, workspace, None if ceiling is None else micros(ceiling))
    await change_setting(tx, engine, caller, workspace, "", "budget.daily_usd", ceiling, unset=False)
    await wake_all(tx, workspace)
    return _budget(row)


async def _limit_day(tx: Tx, engine: Engine, workspace: str, ceiling: int | None) -> Mapping[str, Any]:
    """Set today's ceiling, counting in running attempts; removing the limit of a day that never had one does
    nothing.
    """
    names = {"workspace": workspace, "kind": "day", "owner": day_of(tx.now)}
    found = await tx.one("find_budget", **names) if ceiling is None else await today(tx, engine, workspace)
    if found is None:
        spent = await tx.one("spent_since", workspace=workspace, since=day_begins(tx.now))
        assert spent is not None
        return {**names, "ceiling": None, "spent": int(spent["cost"]), "granted": 0}
    if found["counted_to"] is not None:
        await count_in(tx, engine, found)
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    row |= {"ceiling": ceiling, "told": budget.reached(ceiling, row["spent"])}
    await tx.run("save_budgets", items=[to_save(row)])
    return row


async def _set_agent(tx: Tx, workspace: str, agent_id: str, ceiling: int | None) -> Mapping[str, Any]:
    row = await tx.one("lock_agent", workspace=workspace, id=agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="id")
    warning = budget.reached(ceiling, row["spent"])
    await tx.run("set_agent_budget", workspace=workspace, id=agent_id, budget=ceiling, told=warning)
    await wake_all(tx, workspace)
    return {**row, "kind": "agent", "owner": agent_id, "ceiling": ceiling}


async def change(work: UnitOfWork, workspace: str, kind: str, owner: str, ceiling: int | None) -> dict[str, Any]:
    """Set a ceiling; `settle` then counts in existing work, and frees tasks that can be paid for now."""
    tx = work.tx
    found = await tx.one("find_budget", workspace=workspace, kind=kind, owner=owner)
    if found is None:
        await _begin(work, workspace, kind, owner)
        found = await tx.one("find_budget", workspace=workspace, kind=kind, owner=owner)
        assert found is not None
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    row |= {"ceiling": ceiling, "told": budget.reached(ceiling, row["spent"])}
    await tx.run("save_budgets", items=[to_save(row)])
    return row


async def _begin(work: UnitOfWork, workspace: str, kind: str, owner: str) -> None:
    """Give a budget to an existing DAG: new tasks join it from now on, existing ones are counted in."""
    if kind == "tree":
        task_id = ids.show_task(owner)
        hint = "Submit it with tree_budget_usd, or set a budget for its DAG."
        raise NotFound(f"task {task_id} has no budget for itself and what it spawns", where="id", hint=hint)
    tx = work.tx
    await tx.all("lock_tasks", items=[(owner,)])  # a standalone task that ends or spawns now must find the new row
    await tx.all("lock_dags", items=[(owner,)])
    rows = await tx.all("tasks_to_count", dag=owner, after=FIRST, count=1)
    first = await tx.one("read_tasks", items=[(rows[0]["id"],)]) if rows else None
    if first is None or first["workspace"] != workspace:
        raise NotFound(f"there is no DAG {ids.show_dag(owner)}", where="id", dag_id=ids.show_dag(owner))
    id_ = work.engine.ids.make(work.now)
    await tx.insert("insert_budgets", [NewBudget(id_, workspace, "dag", owner, counted_to=FIRST)])
    await tx.run("join_trees", budget=id_, dag=owner)


async def settle_budget(
    tx: Tx, engine: Engine, _caller: Caller, workspace: str, kind: str, owner: str
) -> tuple[Budget, bool]:
    """Apply one batch of a changed ceiling's effects; returns the budget, and whether there may be more to do."""
    names = {"workspace": workspace, "kind": kind, "owner": owner}
    row = await tx.one("find_budget", **names)
    assert row is not None
    more = row["counted_to"] is not None
    if more:
        await count_in(tx, engine, row)
    elif row["closed_at"] is not None:
        freed, _ = await free_held(tx, engine, row)
        more = freed == BATCH
    row = await tx.one("find_budget", **names)
    assert row is not None
    return _budget(row), more


COUNTED_AT_ONCE = {False: 1, True: 10}
"""Budgets for which one run of the maintenance job counts in a page: of DAGs, whose pages are usually full, and of
days."""

LOOKED_AT = 100
"""Exhausted budgets checked in one run of the maintenance job; during it, no one else can write to SQLite."""

_PLACES: WeakKeyDictionary[Engine, dict[str, str]] = WeakKeyDictionary()
"""The position of this process in its walks over budgets; other processes have their own."""


async def maintain(tx: Tx, engine: Engine) -> dict[str, int]:
    """Continue what other verbs began: count in existing work, hold back unaffordable tasks, free affordable ones."""
    counts = {"counted": 0, "held": 0, "freed": 0, "opened": 0}
    for days, most in COUNTED_AT_ONCE.items():
        for row in await _next(tx, engine, "counting_budgets", most, days=days):
            counts["counted"] += await count_in(tx, engine, row)
    for row in await _next(tx, engine, "closed_budgets", LOOKED_AT):
        await _maintain(tx, engine, row, counts)
    return {name: count for name, count in counts.items() if count}


async def _next(tx: Tx, engine: Engine, statement: str, count: int, **names: Any) -> Sequence[Row]:
    """The next page of a walk that restarts after the last one."""
    places, walk = _PLACES.setdefault(engine, {}), f"{statement} {names}"
    page = await tx.all(statement, after=places.get(walk, FIRST), count=count, **names)
    places[walk] = page[-1]["id"] if len(page) == count else FIRST
    return page


async def _maintain(tx: Tx, engine: Engine, row: Row, counts: dict[str, int]) -> None:
    rest = budget.left(row["ceiling"], row["spent"], row["granted"])
    held = await hold_under(tx, row["id"], rest) if rest is not None else ()
    counts["held"] += len(held)
    for lane in {task["lane"] for task in held}:
        tx.wake(lane)  # the budgets after them can be reached now
    freed, more = await free_held(tx, engine, row) if rest is None or rest >= 0 else (0, True)
    counts["freed"] += freed
    if not held and not more and not await tx.all("held_under", id=row["id"], count=1):
        counts["opened"] += await _reopen(tx, engine, row)


async def _reopen(tx: Tx, engine: Engine, found: Row) -> bool:
    """Mark the budget as open, unless a claim held back a task while we waited for the lock."""
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    if await tx.all("held_under", id=row["id"], count=1):
        return False
    await tx.run("save_budgets", items=[to_save({**row, "closed_at": None})])
    work = UnitOfWork(tx, engine, Caller("maintenance:budgets"))
    data = {"budget": row["kind"], "id": shown(row)}
    work.emit_for(row["workspace"], "budget_opened", dag_id=dag_of(row), data=data)
    await work.save_events()
    return True


async def shortages(tx: Tx, resolver: Resolver, row: TaskRow) -> list[tuple[str, str]]:
    """The shortage of each budget above a task, and what would help."""
    day = None
    if resolver.settings().budget.daily_usd is not None:
        day = await tx.one("find_budget", workspace=row.workspace, kind="day", owner=day_of(tx.now))
    allocator = BudgetAllocator(resolver, day=day)
    task = {"budget_id": row.budget_id, "estimated_cost": row.estimated_cost}
    await allocator.load(tx, [task])
    return [_shortage(level, amount) for level, amount in allocator.short(task)]


def _shortage(level: Level, amount: int) -> tuple[str, str]:
    left, ceiling = level.left or 0, level.ceiling or 0
    what = f"{words(level.row)} has {usd(left)} of {usd(ceiling)} USD left, but the task can cost {usd(left + amount)}"
    if level.row["kind"] == "day":
        return what, f"raise budget.daily_usd by {usd(amount)} USD, or wait for tomorrow (UTC)"
    return what, f"raise its ceiling by {usd(amount)} USD, or running attempts release unused grants"


@reading(Budgets.list)
async def list_budgets(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, kind: Kind | None = None, *, limit: int = 100
) -> list[Budget]:
    found: list[Mapping[str, Any]] = []
    if kind in {None, "agent"}:
        agents = await tx.all("list_agents", workspace=workspace)
        found += [
            {**agent, "kind": "agent", "owner": agent["id"], "ceiling": agent["budget"]}
            for agent in agents
            if agent["budget"] is not None
        ]
    if kind != "agent":
        daily = (await engine.settings_cache.load(tx, workspace)).settings().budget.daily_usd
        for row in await tx.all("list_budgets", workspace=workspace, kind=kind, count=limit):
            today = row["kind"] == "day" and row["owner"] == day_of(tx.now)
            found.append({**row, "ceiling": None if daily is None else micros(daily)} if today else row)
    return [_budget(row) for row in found[:limit]]


def _budget(row: Mapping[str, Any]) -> Budget:
    left = budget.left(row["ceiling"], row["spent"], row["granted"])
    return Budget(
        kind=row["kind"],
        id=shown(row),
        ceiling_usd=None if row["ceiling"] is None else dollars(row["ceiling"]),
        spent_usd=dollars(row["spent"]),
        granted_usd=dollars(row["granted"]),
        remaining_usd=None if left is None else dollars(left),
        holds_back=row.get("closed_at") is not None,
    )


@reading(Budgets.costs)
async def report_costs(
    tx: Tx,
    engine: Engine,
    caller: Caller,
    workspace: str,
    by: By = "type",
    *,
    since: Time | None = None,
    until: Time | None = None,
    limit: int = 100,
) -> Costs:
    return await costs.report(tx, workspace, by, epoch(since) or 0.0, epoch(until), limit)
