"""A verb's cost changes: books usage, settles grants, and writes each budget once, at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.accounts.windows import AccountWindows
from shiftwork.budgets import policy as budget
from shiftwork.budgets.allocator import free_held, to_save
from shiftwork.engine.lanes import wake_all
from shiftwork.engine.new_events import NewEvent
from shiftwork.engine.unit_of_work import AttemptEnd, Participant, UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import InputError
from shiftwork.model.outcome import Token
from shiftwork.model.task import Usage, dollars, micros
from shiftwork.store.store import Row

MAX_ATTEMPT_USD = 1_000_000
"""The most that all reports of one attempt may add up to: a false report must not exhaust a workspace's budgets."""

FREED_AT_ONCE = 20
"""Held tasks reconsidered when an attempt refunds money; the maintenance job continues from there."""


class BudgetMove(NamedTuple):
    """A change in one attempt's use of its budgets. A grant still open after the end counts as spent."""

    used_before: int
    used: int
    over_before: bool = False
    over: bool = False
    settled: bool = False
    """Whether its grant is closed."""

    def change(self, granted: int) -> budget.BudgetShare:
        """The change to a budget that granted this much."""
        before = budget.share(granted, self.used_before, over=self.over_before)
        after = budget.share(0 if self.settled else granted, self.used, over=self.over)
        return budget.BudgetShare(after.spent - before.spent, after.granted - before.granted)


class ClaimRef(NamedTuple):
    """The claim and its budgets."""

    token: Token
    workspace: str
    agent_id: str
    granted: int
    charged: bool
    """Whether budgets above the agent's may be charged."""


class UsageAmounts(NamedTuple):
    """Amounts of one or several reports, in the column order of the statement `book_costs`."""

    cost: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def plus(self, usage: Usage) -> UsageAmounts:
        cost = self.cost + micros(usage.cost_usd or 0)
        return UsageAmounts(cost, self.tokens_in + usage.tokens_in, self.tokens_out + usage.tokens_out)


class CostChanges(Participant):
    """Collects what a verb does to money, and writes it in lock order: agents, then budgets."""

    def __init__(self, work: UnitOfWork) -> None:
        super().__init__(work)
        self._agents: dict[tuple[str, str], budget.BudgetShare] = defaultdict(lambda: budget.BudgetShare(0, 0))
        self._moves: dict[Token, BudgetMove] = {}
        self._charges: dict[Token, list[Row]] = {}

    async def book(self, reports: Sequence[tuple[Token, Usage]], *, status: str | None = None) -> list[Row]:
        """Book the usage of running attempts: to them, to their agents, and to every budget above them.

        Heartbeats, steps, completions and failures all use this; `exceeded` then says which attempts must stop. A
        report without a live claim (in this status) is skipped: `book_late` is for those.
        """
        totals: dict[Token, UsageAmounts] = defaultdict(UsageAmounts)
        models: dict[tuple[Token, str], UsageAmounts] = defaultdict(UsageAmounts)
        for token, usage in reports:
            if usage.cost_usd or usage.tokens_in or usage.tokens_out:
                totals[token] = totals[token].plus(usage)
                models[token, usage.model or ""] = models[token, usage.model or ""].plus(usage)
        if not totals:
            return []
        caller = self.work.caller
        items = [(*token, *used) for token, used in sorted(totals.items())]
        names = {"status": status, "workspace": caller.workspace, "holder": caller.holder}
        rows = list(await self.work.tx.all("add_usage", items=items, **names))
        booked = {Token(row["id"], row["fence"]): row for row in rows}
        live = [(token, model, used) for (token, model), used in models.items() if token in booked]
        await self._save_costs([(token, booked[token], model, used) for token, model, used in live])
        for token, row in booked.items():
            self._use(row, totals[token].cost)
        return rows

    def _use(self, row: Row, cost: int) -> None:
        before, now = row["attempt_cost"] - cost, row["attempt_cost"]
        if now > micros(MAX_ATTEMPT_USD):
            raise InputError(f"an attempt costs at most {MAX_ATTEMPT_USD:,} dollars", where="usage.cost_usd")
        token = Token(row["id"], row["fence"])
        claim = ClaimRef(token, row["workspace"], row["agent_id"], row["granted"], row["charged"])
        self._move(claim, BudgetMove(before, now))
        limit = row["estimated_cost"]
        if limit is not None and before <= limit < now:
            self._emit_overrun(row)
        known = self.work.rows.get(row["id"])
        if known is not None:
            known.attempt_cost, known.tokens_in, known.tokens_out = now, row["tokens_in"], row["tokens_out"]

    def _emit_overrun(self, row: Row) -> None:
        data = {"limit_usd": dollars(row["estimated_cost"]), "spent_usd": dollars(row["attempt_cost"])}
        work = self.work
        work.add_event(
            NewEvent(
                work.now,
                row["workspace"],
                "overrun",
                work.caller.for_agent(row["agent_id"]),
                row["id"],
                row["dag_id"],
                request_id=work.request_of(row["id"], row["fence"]),
                fence=row["fence"],
                data=data,
            )
        )

    async def book_late(self, token: Token, usage: Usage, *, last: bool) -> bool:
        """Book usage reported under an old fence: it changes no state, but it is charged to its attempt.

        A lost attempt was settled at its whole grant: its final report replaces that, earlier reports count within it.
        """
        used = UsageAmounts().plus(usage)
        if not any(used):
            return False
        work = self.work
        names = {"id": token.id, "fence": token.fence}
        attempt = await work.tx.one("read_attempt", **names, workspace=work.caller.workspace)
        if attempt is None:
            return False
        open_ = 0 if last else attempt["granted"]
        await work.tx.run("book_late_usage", **names, cost=used.cost, granted=open_)
        await self._add_late_cost(token, used)
        await self._save_costs([(token, attempt, usage.model or "", used)])
        before = attempt["cost"]
        claim = ClaimRef(token, attempt["workspace"], attempt["agent_id"], attempt["granted"], charged=True)
        self._move(claim, BudgetMove(before, before + used.cost, over_before=True, over=True, settled=last))
        return True

    async def _add_late_cost(self, token: Token, used: UsageAmounts) -> None:
        row = self.work.rows.get(token.id)
        if row is None:
            await self.work.tx.run("add_late_cost", id=token.id, **used._asdict(), now=self.work.now)
            return
        row.cost += used.cost
        row.tokens_in += used.tokens_in
        row.tokens_out += used.tokens_out
        self.work.touch(row)

    async def _save_costs(self, booked: Sequence[tuple[Token, Row, str, UsageAmounts]]) -> None:
        items = [
            (*token, model, row["workspace"], row["type"], row["dag_id"], row["agent_id"], row["claimed_at"], *used)
            for token, row, model, used in booked
        ]
        if items:
            await self.work.tx.run("book_costs", items=sorted(items))
        for token, row, model, used in booked:
            tokens = used.tokens_in + used.tokens_out
            self.work.part(AccountWindows).use(token, row, model, tokens, dollars(used.cost))

    def attempt_ended(self, end: AttemptEnd) -> None:
        row = end.row
        assert row.agent_id is not None
        claim = ClaimRef(Token(row.id, row.fence), row.workspace, row.agent_id, row.granted, row.charged)
        self._end(claim, row.attempt_cost, lost=end.lost)

    def attempts_accepted(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row["charged"]:
                token = Token(row["id"], row["fence"])
                claim = ClaimRef(token, row["workspace"], row["last_agent_id"], row["granted"], charged=True)
                self._end(claim, row["attempt_cost"], lost=False)

    def _end(self, claim: ClaimRef, used: int, *, lost: bool) -> None:
        """Refund the unused grant of an attempt, unless its usage is unknown."""
        self._move(claim, BudgetMove(used, used, over=True, settled=not lost))

    def _move(self, claim: ClaimRef, move: BudgetMove) -> None:
        change = move.change(claim.granted)
        if change != (0, 0):
            agent = claim.workspace, claim.agent_id
            before = self._agents[agent]
            self._agents[agent] = budget.BudgetShare(before.spent + change.spent, before.granted + change.granted)
        if claim.charged:
            first = self._moves.get(claim.token, move)
            self._moves[claim.token] = move._replace(used_before=first.used_before, over_before=first.over_before)

    async def exceeded(self, rows: Sequence[Row]) -> dict[str, str]:
        """Which of these attempts must stop, and why.

        They exceed their task's ceiling, or their grant under a budget that has nothing left.
        """
        why = await self._past_their_own(rows)
        others = [row for row in rows if row["id"] not in why and row["charged"]]
        return why | await self._past_a_ceiling([row for row in others if row["attempt_cost"] > row["granted"]])

    async def _past_their_own(self, rows: Sequence[Row]) -> dict[str, str]:
        priced = {row["id"]: row["attempt_cost"] for row in rows if row["estimated_cost"] is not None}
        why = {}
        for body in await self.work.tx.all("read_bodies", items=[(i,) for i in sorted(priced)]) if priced else ():
            constraints = (msgspec.json.decode(body["body"]).get("spec") or {}).get("constraints") or {}
            most, used = constraints.get("max_cost_usd"), priced[body["task_id"]]
            if most is not None and used > micros(most):
                why[body["task_id"]] = f"the attempt has cost {usd(used)} of at most {usd(micros(most))} USD"
        return why

    async def _past_a_ceiling(self, rows: Sequence[Row]) -> dict[str, str]:
        """Read without a lock: an overrun by two attempts together is found at the next report at the latest."""
        if not rows:
            return {}
        why = {}
        await self._load_charges()
        changes = self._changes()
        names = sorted({c["budget_id"] for charges in self._charges.values() for c in charges})
        chains = await self.work.tx.all("read_chains", items=[(name,) for name in names]) if names else ()
        budgets = {row["id"]: row for row in chains}
        for row in rows:
            if budget.is_over(row["granted"], row["attempt_cost"], await self._agent_rest(row)):
                why[row["id"]] = f"agent {row['agent_id']} has spent its budget"
            for charge in self._charges.get(Token(row["id"], row["fence"]), ()):
                above = budgets[charge["budget_id"]]
                more = changes.get(above["id"], budget.BudgetShare(0, 0))
                rest = budget.left(above["ceiling"], above["spent"] + more.spent, above["granted"] + more.granted)
                if budget.is_over(charge["granted"], row["attempt_cost"], rest):
                    why[row["id"]] = f"{words(above)} has spent its {usd(above['ceiling'])} USD"
        return why

    async def _agent_rest(self, row: Row) -> int | None:
        agent = await self.work.tx.one("read_agent", workspace=row["workspace"], id=row["agent_id"])
        if agent is None:
            return None
        more = self._agents[row["workspace"], row["agent_id"]]
        return budget.left(agent["budget"], agent["spent"] + more.spent, agent["granted"] + more.granted)

    async def save_agents(self) -> None:
        if not self._agents:
            return
        changes, self._agents = dict(self._agents), defaultdict(lambda: budget.BudgetShare(0, 0))
        items = []
        for row in await self.work.tx.all("lock_agents", items=sorted(changes)):
            more = changes[row["workspace"], row["id"]]
            warning = self._warn(row, row["budget"], row["spent"] + more.spent, {"kind": "agent", "owner": row["id"]})
            items.append((row["workspace"], row["id"], -more.granted, more.spent, warning))
        await self.work.tx.run("settle_agents", items=items)

    async def save(self) -> None:
        await self.save_agents()
        await self._save_budgets()

    async def _save_budgets(self) -> None:
        """Lock and write budgets last, after agents and everything else of a task."""
        if not self._moves:
            return
        await self._load_charges()
        tx = self.work.tx
        settled = [token for token in self._charges if self._moves[token].settled]
        if settled:
            await tx.run("settle_charges", items=sorted(settled))
        changes = {id_: change for id_, change in self._changes().items() if change != (0, 0)}
        self._moves, self._charges = {}, {}
        if not changes:
            return
        before = await tx.all("lock_budgets", items=[(id_,) for id_ in sorted(changes)])
        after = [self._changed(row, changes[row["id"]]) for row in before]
        await tx.run("save_budgets", items=[to_save(row) for row in after])
        for was, row in zip(before, after, strict=True):
            await self._open(was, row)

    def _changed(self, row: Row, more: budget.BudgetShare) -> dict[str, Any]:
        spent, granted = row["spent"] + more.spent, row["granted"] + more.granted
        warning = self._warn(row, row["ceiling"], spent, row)
        return {**row, "spent": spent, "granted": granted, "told": warning}

    def _warn(self, row: Row, ceiling: int | None, spent: int, named: Row) -> int:
        """Warn once when a share of the ceiling is spent; returns the share last reported."""
        percent = budget.reached(ceiling, spent)
        if percent <= row["told"]:
            return int(row["told"])
        facts = {"percent": percent, "spent_usd": dollars(spent), "ceiling_usd": dollars(ceiling)}
        about = {"budget": named["kind"], "id": shown(named), **facts}
        self.work.emit_for(row["workspace"], "budget_warned", dag_id=dag_of(named), data=about)
        self.work.alert(row["workspace"], "budget", **about, of=words(named))
        return percent

    async def _open(self, was: Row, row: Row) -> None:
        """Free held tasks, since there is more to grant than before."""
        left, before = (budget.left(r["ceiling"], r["spent"], r["granted"]) for r in (row, was))
        if left is None or before is None or left <= max(before, 0):
            return
        work = self.work
        if row["closed_at"] is not None:
            await free_held(work.tx, work.engine, row, FREED_AT_ONCE)
        if row["kind"] == "day" and before <= 0:
            await wake_all(work.tx, row["workspace"])

    async def _load_charges(self) -> None:
        unread = sorted(self._moves.keys() - self._charges.keys())
        if unread:
            found: dict[Token, list[Row]] = {token: [] for token in unread}
            for row in await self.work.tx.all("charges_of", items=unread):
                found[Token(row["task_id"], row["fence"])].append(row)
            self._charges |= found

    def _changes(self) -> dict[str, budget.BudgetShare]:
        """The changes to each budget."""
        sums: dict[str, budget.BudgetShare] = defaultdict(lambda: budget.BudgetShare(0, 0))
        for token, charges in self._charges.items():
            for charge in charges:
                more, sum_ = self._moves[token].change(charge["granted"]), sums[charge["budget_id"]]
                sums[charge["budget_id"]] = budget.BudgetShare(sum_.spent + more.spent, sum_.granted + more.granted)
        return sums


def usd(amount: int) -> str:
    return f"{dollars(amount):.2f}" if amount % 10_000 == 0 else f"{dollars(amount):.6f}".rstrip("0")


def shown(row: Row) -> str:
    """A budget's owner in its public form."""
    if row["kind"] == "dag":
        return ids.show_dag(row["owner"])
    return ids.show_task(row["owner"]) if row["kind"] == "tree" else str(row["owner"])


def dag_of(row: Row) -> str | None:
    return str(row["owner"]) if row["kind"] == "dag" else None


def words(row: Row) -> str:
    """A budget for use in a sentence."""
    name = shown(row)
    kinds = {"dag": f"DAG {name}", "tree": f"task {name} with its subtasks", "day": f"the day {name}"}
    return kinds.get(row["kind"], f"agent {name}")


def emit_budget_closed(work: UnitOfWork, row: Row) -> None:
    """Record that a budget cannot pay for the tasks that wait under it."""
    work.emit_for(row["workspace"], "budget_closed", dag_id=dag_of(row), data={"budget": row["kind"], "id": shown(row)})
