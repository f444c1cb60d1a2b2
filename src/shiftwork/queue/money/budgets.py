"""Budgets of DAGs and task trees: made with their tasks or set later, changed, read, and kept true by a duty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import msgspec

from shiftwork.core import ids
from shiftwork.core.errors import NotFound
from shiftwork.core.resolve import Resolver
from shiftwork.core.task import dollars, micros
from shiftwork.policy import budget
from shiftwork.queue.control import change_setting
from shiftwork.queue.engine import Caller, Engine
from shiftwork.queue.lanes import wake_all
from shiftwork.queue.money.booking import dag_of, shown, usd, words
from shiftwork.queue.money.counting import count_in
from shiftwork.queue.money.purse import (
    BATCH,
    FIRST,
    Level,
    Purse,
    day_begins,
    day_of,
    hold_under,
    let_go,
    to_save,
    today,
)
from shiftwork.queue.rows import TaskRow
from shiftwork.queue.work import Work
from shiftwork.store.store import Row, Tx

Kind = Literal["agent", "dag", "tree", "day"]
KINDS: tuple[str, ...] = get_args(Kind)


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
    row = await _limit_day(tx, engine, workspace, None if ceiling is None else micros(ceiling))
    await change_setting(tx, engine, caller, workspace, "", "budget.daily_usd", ceiling, unset=False)
    await wake_all(tx, workspace)
    return _budget(row)


async def _limit_day(tx: Tx, engine: Engine, workspace: str, ceiling: int | None) -> Mapping[str, Any]:
    """Today's budget with this ceiling, and with what runs; a day that never had a limit needs none to be without."""
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
    told = budget.reached(ceiling, row["spent"])
    await tx.run("set_agent_budget", workspace=workspace, id=agent_id, budget=ceiling, told=told)
    await wake_all(tx, workspace)
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
    rows = await tx.all("tasks_to_count", dag=owner, after=FIRST, count=1)
    first = await tx.one("read_tasks", items=[(rows[0]["id"],)]) if rows else None
    if first is None or first["workspace"] != workspace:
        raise NotFound(f"there is no DAG {ids.show_dag(owner)}", where="id", dag_id=ids.show_dag(owner))
    id_ = work.engine.ids.make(work.now)
    await tx.insert("insert_budgets", [(id_, workspace, "dag", owner, None, None, 0, FIRST)])
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


# -- keeping -----------------------------------------------------------------------------------------------------


COUNTED_AT_ONCE = {False: 1, True: 10}
"""Budgets that one turn of the duty counts a page into: of DAGs, whose pages are mostly full, and of days."""

LOOKED_AT = 100
"""Closed budgets that one turn of the duty looks at; meanwhile nobody else writes to SQLite."""

_PLACES: WeakKeyDictionary[Engine, dict[str, str]] = WeakKeyDictionary()
"""How far this process has come with its walks over budgets; whoever else has the turn has places of its own."""


async def tend(tx: Tx, engine: Engine) -> dict[str, int]:
    """Go on with what began in other verbs: count in, hold back what cannot be paid, let go what can."""
    counts = {"counted": 0, "held": 0, "freed": 0, "opened": 0}
    for days, most in COUNTED_AT_ONCE.items():
        for row in await _next(tx, engine, "counting_budgets", most, days=days):
            counts["counted"] += await count_in(tx, engine, row)
    for row in await _next(tx, engine, "closed_budgets", LOOKED_AT):
        await _tend(tx, engine, row, counts)
    return {name: count for name, count in counts.items() if count}


async def _next(tx: Tx, engine: Engine, statement: str, count: int, **names: Any) -> Sequence[Row]:
    """The next page of a walk that begins again behind the last."""
    places, walk = _PLACES.setdefault(engine, {}), f"{statement} {names}"
    page = await tx.all(statement, after=places.get(walk, FIRST), count=count, **names)
    places[walk] = page[-1]["id"] if len(page) == count else FIRST
    return page


async def _tend(tx: Tx, engine: Engine, row: Row, counts: dict[str, int]) -> None:
    rest = budget.left(row["ceiling"], row["spent"], row["granted"])
    held = await hold_under(tx, row["id"], rest) if rest is not None else ()
    counts["held"] += len(held)
    for lane in {task["lane"] for task in held}:
        tx.wake(lane)  # what stands behind them can be reached now
    freed, more = await let_go(tx, engine, row) if rest is None or rest >= 0 else (0, True)
    counts["freed"] += freed
    if not held and not more and not await tx.all("held_under", id=row["id"], count=1):
        counts["opened"] += await _reopen(tx, engine, row)


async def _reopen(tx: Tx, engine: Engine, found: Row) -> bool:
    """Nothing is held back any more, unless a claim has held something back while we waited for the budget."""
    row = dict((await tx.all("lock_budgets", items=[(found["id"],)]))[0])
    if await tx.all("held_under", id=row["id"], count=1):
        return False
    await tx.run("save_budgets", items=[to_save({**row, "closed_at": None})])
    work = Work(tx, engine, Caller("duty:budgets"))
    data = {"budget": row["kind"], "id": shown(row)}
    work.tell_of(row["workspace"], "budget_opened", dag_id=dag_of(row), data=data)
    await work.save_events()
    return True


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
