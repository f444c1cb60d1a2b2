"""Grants budget to claimed tasks: from the agent, the day, and the task's own budgets."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from shiftwork.budgets import policy as budget
from shiftwork.budgets.membership import NewBudget
from shiftwork.budgets.policy import day_begins, day_of, span_of
from shiftwork.engine.engine import Engine
from shiftwork.model.task import micros
from shiftwork.settings.cache import FRESH_SEC
from shiftwork.settings.resolve import Resolver
from shiftwork.store.statements import columns_of
from shiftwork.store.store import Row, Tx

HOLD = "budget"
"""The value of a task's `hold` while a budget above it cannot pay for it."""

BATCH = 500
"""Tasks held back or freed by one statement."""

FIRST = "00000000-0000-0000-0000-000000000000"
"""Sorts before every id: the start of a walk."""

_NONE_YET: WeakKeyDictionary[Engine, dict[str, tuple[float, float]]] = WeakKeyDictionary()
"""Workspaces whose day had no budget at the last check: the day, and how long that is cached."""


class Level:
    """A budget with the allocator's remaining amounts."""

    def __init__(self, row: Row, ceiling: int | None) -> None:
        self.ceiling = ceiling
        self.count(row)

    def count(self, row: Row) -> None:
        """Start with the amounts of the row."""
        self.row = row
        self.left = budget.left(self.ceiling, row["spent"], row["granted"])


def to_save(row: Row) -> tuple[Any, ...]:
    """A budget as the statement `save_budgets` takes it."""
    return tuple(row[name] for name in columns_of("save_budgets"))


class BudgetAllocator:
    """Determines the grant of each task, and deducts it from the budgets."""

    def __init__(self, resolver: Resolver, agent_left: int | None = None, day: Row | None = None) -> None:
        settings = resolver.settings().budget
        self._estimate = micros(settings.default_estimate_usd)
        self._agent_left = self._agent_had = agent_left
        self._levels: dict[str, Level] = {}
        self._day: Level | None = None
        if day is not None:
            most = settings.daily_usd
            self._day = self._levels[day["id"]] = Level(day, None if most is None else micros(most))
        self.closed: dict[str, Level] = {}
        """Budgets of DAGs and trees that could not pay a task."""
        self.grants: dict[str, int] = {}
        """The grants by task."""

    @property
    def unlimited(self) -> bool:
        """Whether a task without a budget needs no grant at all."""
        return self._agent_left is None and self._day is None

    @property
    def day_is_spent(self) -> bool:
        return self._day is not None and self._day.left is not None and self._day.left <= 0

    async def load(self, tx: Tx, rows: Iterable[Row]) -> None:
        """Read the budgets of these tasks that are not loaded yet, with all above them."""
        unknown = {row["budget_id"] for row in rows if row["budget_id"] is not None} - self._levels.keys()
        await self._learn(tx, unknown)

    async def _learn(self, tx: Tx, names: set[str]) -> set[str]:
        """Read these budgets with all above them; returns the new ones. Loaded budgets keep their counts."""
        if not names:
            return names
        rows = await tx.all("read_chains", items=[(name,) for name in sorted(names)])
        fresh = {row["id"]: Level(row, row["ceiling"]) for row in rows if row["id"] not in self._levels}
        self._levels |= fresh
        return set(fresh)

    def levels(self, row: Row) -> list[Level]:
        """Every budget that pays for this task, except the agent's own."""
        found = [] if self._day is None else [self._day]
        above = row["budget_id"]
        while above is not None:
            found.append(self._levels[above])
            above = found[-1].row["parent_id"]
        return found

    def _paid_for(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The tasks that a budget may pay for; usually none."""
        return rows if self._levels or self._day is not None else ()

    def fits(self, row: Row) -> bool:
        """Whether there is enough budget for this task; a DAG or tree that is short is recorded."""
        levels = self.levels(row)
        if self._offer(row, levels) is not None:
            return True
        for level in levels:
            if level is not self._day and level.left is not None and self._grant(row, [level.left]) is None:
                self.closed[level.row["id"]] = level
        return False

    def take(self, row: Row) -> None:
        """Deduct the grant of a task that fits."""
        levels = self.levels(row)
        amount = self._offer(row, levels)
        assert amount is not None
        if self._agent_left is not None:
            self._agent_left -= amount
        for level in levels:
            if level.left is not None:
                level.left -= amount
        if levels or self._agent_left is not None:
            self.grants[row["id"]] = amount

    def _offer(self, row: Row, levels: Sequence[Level]) -> int | None:
        left = [level.left for level in levels if level.left is not None]
        return self._grant(row, left if self._agent_left is None else [*left, self._agent_left])

    def _grant(self, row: Row, left: Sequence[int]) -> int | None:
        return budget.grant(row["estimated_cost"], self._estimate, left)

    def short(self, row: Row) -> list[tuple[Level, int]]:
        """The budgets that cannot pay for this task, each with its shortage."""
        wanted = self._estimate if row["estimated_cost"] is None else row["estimated_cost"]
        levels = [level for level in self.levels(row) if level.left is not None]
        return [(level, wanted - (level.left or 0)) for level in levels if self._grant(row, [level.left or 0]) is None]

    async def lock(self, tx: Tx, rows: list[Row]) -> list[Row]:
        """Lock the budgets that pay for these tasks and recheck; unaffordable tasks are left out."""
        names = {level.row["id"] for row in self._paid_for(rows) for level in self.levels(row)} | self.closed.keys()
        if not names:
            return rows
        self._agent_left = self._agent_had
        self.grants.clear()
        while names:
            names = await self._learn(tx, await self._count_again(tx, names))
        paid = []
        for row in rows:
            if self.fits(row):
                self.take(row)
                paid.append(row)
        return paid

    async def _count_again(self, tx: Tx, names: set[str]) -> set[str]:
        """Lock these budgets and restart with their current amounts; returns those above them that are not loaded.

        Such a budget was added since. It is newer than those below it, so it is next in the order of locks.
        """
        above = set()
        for locked in await tx.all("lock_budgets", items=[(name,) for name in sorted(names)]):
            level = self._levels[locked["id"]]
            if level is not self._day:
                level.ceiling = locked["ceiling"]
            level.count(locked)
            above.add(locked["parent_id"])
        return above - self._levels.keys() - {None}

    async def pay(self, tx: Tx, rows: Sequence[Row]) -> list[Row]:
        """Set aside the grants of these tasks, which are being claimed; returns the budgets found exhausted."""
        charges = []
        sums: dict[str, int] = defaultdict(int)
        for row in self._paid_for(rows):
            for level in self.levels(row):
                charges.append((row["id"], row["fence"] + 1, level.row["id"], self.grants[row["id"]]))
                sums[level.row["id"]] += self.grants[row["id"]]
        shut = [level.row for level in self.closed.values() if level.row["closed_at"] is None]
        changed = [self._levels[name] for name in sorted(sums.keys() | {row["id"] for row in shut})]
        if changed:
            await tx.run("save_budgets", items=[self._paid(level, sums[level.row["id"]], tx.now) for level in changed])
            await tx.insert("insert_charges", charges)
        return shut

    def _paid(self, level: Level, more: int, now: float) -> tuple[Any, ...]:
        row = dict(level.row)
        row["ceiling"], row["granted"] = level.ceiling, row["granted"] + more
        if row["id"] in self.closed and row["closed_at"] is None:
            row["closed_at"] = now
        return to_save(row)

    async def hold_back(self, tx: Tx) -> int:
        """Hold back tasks that no budget can pay for now, a batch per budget; returns how many."""
        held = 0
        for name, level in sorted(self.closed.items()):
            if level.left is not None:
                held += len(await hold_under(tx, name, level.left))
        return held


async def hold_under(tx: Tx, budget_id: str, rest: int) -> Sequence[Row]:
    """Hold back tasks that cost more than the rest of this budget; the maintenance job continues after a batch."""
    return await tx.all("hold_under", id=budget_id, rest=rest, count=BATCH, now=tx.now)


async def open_allocator(tx: Tx, engine: Engine, workspace: str, agent: Row) -> BudgetAllocator:
    """The allocator for an agent that claims."""
    resolver = await engine.settings_cache.load(tx, workspace)
    left = budget.left(agent["budget"], agent["spent"], agent["granted"])
    if resolver.settings().budget.daily_usd is None:
        return BudgetAllocator(resolver, left, await _existing_day_budget(tx, engine, workspace))
    return BudgetAllocator(resolver, left, await today(tx, engine, workspace))


async def _existing_day_budget(tx: Tx, engine: Engine, workspace: str) -> Row | None:
    """The day's budget, if any: it continues to count without a limit, so that a new limit misses nothing.

    Usually there is none, which is rechecked as often as settings are.
    """
    none_yet = _NONE_YET.setdefault(engine, {})
    day, until = none_yet.get(workspace, (0.0, 0.0))
    if day == day_begins(tx.now) and time.monotonic() < until:
        return None
    row = await tx.one("find_budget", workspace=workspace, kind="day", owner=day_of(tx.now))
    if row is None:
        none_yet[workspace] = day_begins(tx.now), time.monotonic() + FRESH_SEC
    return row


async def today(tx: Tx, engine: Engine, workspace: str) -> Row:
    """The day's budget; it starts with the cost of the day's attempts, including those before there was a limit.

    Running attempts are counted in later, because a claim must not wait for tasks.
    """
    _NONE_YET.setdefault(engine, {}).pop(workspace, None)
    names = {"workspace": workspace, "kind": "day", "owner": day_of(tx.now)}
    row = await tx.one("find_budget", **names)
    if row is None:
        gone = await tx.one("spent_by_removed", workspace=workspace, **span_of(names["owner"]))
        assert gone is not None
        id_ = engine.ids.make(tx.now)
        new = NewBudget(id_, workspace, "day", names["owner"], spent=int(gone["cost"]), counted_to=FIRST)
        await tx.insert("insert_budgets", [new])
        row = await tx.one("find_budget", **names)
        assert row is not None
        if row["id"] == id_:  # no other transaction was faster
            row = {**row, "spent": row["spent"] + await count_ended(tx, row)}
            await tx.run("save_budgets", items=[to_save(row)])
    return row


async def count_ended(tx: Tx, day: Row) -> int:
    """Charge to a day its ended attempts not charged yet; returns their cost."""
    names = {"id": day["id"], "workspace": day["workspace"], **span_of(day["owner"])}
    return sum(int(row["cost"]) for row in await tx.all("charge_ended", **names))


async def free_held(tx: Tx, engine: Engine, held_by: Row, count: int = BATCH) -> tuple[int, bool]:
    """Free held tasks that a budget can pay for now, the first in order first; returns how many, and whether others
    stay held.
    """
    found = await tx.all("held_under", id=held_by["id"], count=count)
    if not found:
        return 0, False
    allocator = BudgetAllocator(await engine.settings_cache.load(tx, held_by["workspace"]))
    rows = await tx.all("lock_held", items=[(row["id"],) for row in found])
    await allocator.load(tx, rows)
    free = []
    for row in rows:
        if allocator.fits(row):
            allocator.take(row)
            free.append(row)
    if free:
        await tx.run("free_held", items=[(row["id"],) for row in free], now=tx.now)
        for lane in {row["lane"] for row in free}:
            tx.wake(lane)
    return len(free), len(free) < len(found) or len(found) == count
