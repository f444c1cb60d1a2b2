"""Budgets of DAGs and task trees: made with their tasks or set later, changed, read, and kept true by a duty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.resolve import Resolver
from shiftwork.core.task import dollars, micros
from shiftwork.policy import budget
from shiftwork.queue.control import change_setting
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.money.booking import dag_of, shown, usd, words
from shiftwork.queue.money.purse import BATCH, Level, Purse, day_of, hold_under, let_go, to_save, today
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

Kind = Literal["agent", "dag", "tree", "day"]
KINDS: tuple[str, ...] = get_args(Kind)
_FIRST = "00000000-0000-0000-0000-000000000000"


class Budget(msgspec.Struct, frozen=True):
    """What an agent, a DAG, a task with all it spawns, or a workspace on one day may cost, and has."""

    kind: Kind
    id: str
    ceiling_usd: float | None
    spent_usd: float
    granted_usd: float
    """Granted to running attempts and not spent yet."""
    remaining_usd: float | None
    holds_back: bool = False
    """Tasks wait because it cannot pay them."""


# -- changing ----------------------------------------------------------------------------------------------------


async def set_ceiling(
    tx: Tx, engine: Engine, caller: Caller, workspace: str, kind: Kind, owner: str, ceiling: float | None
) -> Budget:
    """Change what a budget may cost in all, None for no limit; a DAG that has no budget gets one."""
    if kind == "day":
        return await _set_day(tx, engine, caller, workspace, ceiling)
    work = Work(tx, engine, caller)
    amount = None if ceiling is None else micros(ceiling)
    if kind == "agent":
        row: Mapping[str, Any] = await _set_agent(tx, workspace, owner, amount)
    else:
        row = await change(work, workspace, kind, owner, amount)
    told = {"budget": kind, "id": shown(row), "ceiling_usd": ceiling}
    work.tell_of(workspace, "budget_changed", dag_id=dag_of(row), data=told)
    await work.save_events()
    return _budget(row)


async def _set_day(tx: Tx, engine: Engine, caller: Caller, workspace: str, ceiling: float | None) -> Budget:
    await change_setting(tx, engine, caller, workspace, "", "budget.daily_usd", ceiling, unset=False)
    for lane in await tx.all("lanes_of_workspace", workspace=workspace):
        tx.wake(lane["id"])
    row = await today(tx, engine, workspace)
    return _budget({**row, "ceiling": None if ceiling is None else micros(ceiling)})


async def _set_agent(tx: Tx, workspace: str, agent_id: str, ceiling: int | None) -> Mapping[str, Any]:
    row = await tx.one("lock_agent", workspace=workspace, id=agent_id)
    if row is None:
        raise NotFound(f"there is no agent {agent_id!r}", where="id")
    told = budget.reached(ceiling, row["spent"])
    await tx.run("set_agent_budget", workspace=workspace, id=agent_id, budget=ceiling, told=told)
    return {**row, "kind": "agent", "owner": agent_id, "ceiling": ceiling}


async def change(work: Work, workspace: str, kind: str, owner: str, ceiling: int | None) -> dict[str, Any]:
    """Set a ceiling; `settle` then counts in what a new budget found, and lets go what can be paid now."""
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


async def _begin(work: Work, workspace: str, kind: str, owner: str) -> None:
    """A DAG gets a budget when its tasks are there already: new ones join it from now on, the others are counted in."""
    if kind == "tree":
        task_id = ids.show_task(owner)
        mend = "Submit it with tree_budget_usd, or set a budget for its DAG."
        raise NotFound(f"task {task_id} has no budget for itself and what it spawns", where="id", mend=mend)
    tx = work.tx
    await tx.all("lock_tasks", items=[(owner,)])  # a lone task that ends or spawns now must find what we make
    await tx.all("lock_dags", items=[(owner,)])
    rows = await tx.all("tasks_to_count", dag=owner, after=_FIRST, count=1)
    first = await tx.one("read_tasks", items=[(rows[0]["id"],)]) if rows else None
    if first is None or first["workspace"] != workspace:
        raise NotFound(f"there is no DAG {ids.show_dag(owner)}", where="id", dag_id=ids.show_dag(owner))
    id_ = work.engine.ids.make(work.now)
    await tx.insert("insert_budgets", [(id_, workspace, "dag", owner, None, None, 0, _FIRST)])
    await tx.run("join_trees", budget=id_, dag=owner)


async def settle(tx: Tx, engine: Engine, _caller: Caller, workspace: str, kind: str, owner: str) -> tuple[Budget, bool]:
    """One batch of what follows from a changed ceiling: the budget, and whether there may be more to do."""
    names = {"workspace": workspace, "kind": kind, "owner": owner}
    row = await tx.one("find_budget", **names)
    assert row is not None
    more = row["counted_to"] is not None
    if more:
        await count_in(tx, engine, row)
    elif row["closed_at"] is not None:
        freed, _ = await let_go(tx, engine, row)
        more = freed == BATCH
    row = await tx.one("find_budget", **names)
    assert row is not None
    return _budget(row), more


async def count_in(tx: Tx, engine: Engine, found: Row) -> int:
    """Put the next tasks of a DAG under its new budget, with all that they have cost and may still cost."""
    work = Work(tx, engine, Caller("duty:budgets"))
    page = await tx.all("tasks_to_count", dag=found["owner"], after=found["counted_to"], count=BATCH)
    rows = await work.lock(row["id"] for row in page)
    attempts = await tx.all("read_attempts", items=[(row.id,) for row in rows]) if rows else ()
    estimate = micros((await engine.book.of(tx, found["workspace"])).settings().budget.default_estimate_usd)
    shares = {(a["task_id"], a["fence"]): (a["granted"], a["cost"], True) for a in attempts}
    shares |= {(row.id, row.fence): (_granted(row, estimate), row.attempt_cost, False) for row in rows if row.held}
    items = [(*token, found["id"], share[0]) for token, share in sorted(shares.items())]
    fresh = await tx.all("add_charges", items=items) if items else ()
    if rows:
        await tx.run("put_under", items=[(row.id,) for row in rows], budget=found["id"])
    sums = [budget.share(g, used, over=over) for g, used, over in (shares[c["task_id"], c["fence"]] for c in fresh)]
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    row["spent"] += sum(share.spent for share in sums)
    row["granted"] += sum(share.granted for share in sums)
    row["counted_to"] = page[-1]["id"] if len(page) == BATCH else None
    await tx.run("save_budgets", items=[to_save(row)])
    return len(page)


def _granted(row: TaskRow, estimate: int) -> int:
    """What an attempt that runs already is taken to be granted."""
    return row.granted if row.charged else estimate if row.estimated_cost is None else row.estimated_cost


# -- keeping -----------------------------------------------------------------------------------------------------


async def tend(tx: Tx, engine: Engine) -> dict[str, int]:
    """Go on with what began in other verbs: count in, hold back what cannot be paid, let go what can."""
    counts = {"counted": 0, "held": 0, "freed": 0, "opened": 0}
    for row in await tx.all("counting_budgets", count=1):
        counts["counted"] += await count_in(tx, engine, row)
    after = _FIRST
    while page := await tx.all("closed_budgets", after=after, count=BATCH):
        for row in page:
            await _tend(tx, engine, row, counts)
        after = page[-1]["id"]
    return {name: count for name, count in counts.items() if count}


async def _tend(tx: Tx, engine: Engine, row: Row, counts: dict[str, int]) -> None:
    rest = budget.left(row["ceiling"], row["spent"], row["granted"])
    held = await hold_under(tx, row["id"], rest) if rest is not None else ()
    counts["held"] += len(held)
    for lane in {task["lane"] for task in held}:
        tx.wake(lane)  # what stands behind them can be reached now
    freed, more = await let_go(tx, engine, row) if rest is None or rest >= 0 else (0, True)
    counts["freed"] += freed
    if not held and not more and not await tx.all("held_under", id=row["id"], count=1):
        counts["opened"] += 1
        await _reopen(tx, engine, row)


async def _reopen(tx: Tx, engine: Engine, found: Row) -> None:
    """Nothing is held back any more."""
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    await tx.run("save_budgets", items=[to_save({**row, "closed_at": None})])
    work = Work(tx, engine, Caller("duty:budgets"))
    data = {"budget": row["kind"], "id": shown(row)}
    work.tell_of(row["workspace"], "budget_opened", dag_id=dag_of(row), data=data)
    await work.save_events()


async def shortages(tx: Tx, resolver: Resolver, row: TaskRow) -> list[tuple[str, str]]:
    """What each budget above a task is short of, and what would help."""
    day = None
    if resolver.settings().budget.daily_usd is not None:
        day = await tx.one("find_budget", workspace=row.workspace, kind="day", owner=day_of(tx.now))
    purse = Purse(resolver, day=day)
    task = {"budget_id": row.budget_id, "estimated_cost": row.estimated_cost}
    await purse.look(tx, [task])
    return [_shortage(level, amount) for level, amount in purse.short(task)]


def _shortage(level: Level, amount: int) -> tuple[str, str]:
    left, ceiling = level.left or 0, level.ceiling or 0
    what = f"{words(level.row)} has {usd(left)} of {usd(ceiling)} USD left, and the task may cost {usd(left + amount)}"
    if level.row["kind"] == "day":
        return what, f"raise budget.daily_usd by {usd(amount)} USD, or wait for tomorrow (UTC)"
    return what, f"raise its ceiling by {usd(amount)} USD, or what runs gives back what it does not use"


# -- reading -----------------------------------------------------------------------------------------------------


async def read(tx: Tx, engine: Engine, workspace: str, kind: Kind | None, count: int) -> list[Budget]:
    """Agents that have a budget, then days, then DAGs and trees, the newest first."""
    found: list[Mapping[str, Any]] = []
    if kind in {None, "agent"}:
        agents = await tx.all("list_agents", workspace=workspace)
        found += [
            {**agent, "kind": "agent", "owner": agent["id"], "ceiling": agent["budget"]}
            for agent in agents
            if agent["budget"] is not None
        ]
    if kind != "agent":
        daily = (await engine.book.of(tx, workspace)).settings().budget.daily_usd
        for row in await tx.all("list_budgets", workspace=workspace, kind=kind, count=count):
            today = row["kind"] == "day" and row["owner"] == day_of(tx.now)
            found.append({**row, "ceiling": None if daily is None else micros(daily)} if today else row)
    return [_budget(row) for row in found[:count]]


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
