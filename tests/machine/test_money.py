"""Random spending on both stores: budgets stay consistent for any order of claims, usage, losses and late reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from shiftwork import Queue
from shiftwork.model.errors import LeaseLost
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import sql
from tests.conftest import DEEP
from tests.machine.machine import Opener
from tests.machine.test_machine import SETTINGS, opener
from tests.money import check_books, granted

__all__ = ["opener"]

T = TypeVar("T")
AGENTS = ("poor", "rich", "free")
index = st.integers(0, 30)
price = st.sampled_from([None, 0.0, 0.1, 0.3])
amount = st.sampled_from([0.05, 0.1, 0.2, 0.6])
ceiling = st.sampled_from([None, 0.2, 0.5, 1.0])


class Spender(RuleBasedStateMachine):
    """Claims, reports and losses in any order, under budgets of every kind."""

    def __init__(self, opener: Opener) -> None:
        super().__init__()
        self.clock = MovedClock()
        self.runner = asyncio.Runner()
        self.queue: Queue = self.wait(opener(self.clock))
        self.tokens: list[str] = []
        self.dags: list[str] = []

    def wait(self, call: Awaitable[T]) -> T:
        async def run() -> T:
            return await call

        return self.runner.run(run())

    def teardown(self) -> None:
        self.wait(self._end())
        self.runner.close()

    async def _end(self) -> None:
        """Check at the end that nothing is granted any more."""
        await pass_time(self.queue, self.clock, 95)
        await check_books(self.queue)
        assert await granted(self.queue) == 0
        await self.queue.close()

    @initialize()
    def hire(self) -> None:
        for agent, money in zip(AGENTS, (0.5, 50.0, None), strict=True):
            self.wait(self.queue.agents.register(id=agent, max_concurrent_tasks=None, budget_remaining_usd=money))
        self.wait(self.queue.settings.set("retry.strategy", "immediate"))

    @rule(most=ceiling, costs=st.lists(price, min_size=1, max_size=4), tree=st.sampled_from([None, 0.4]))
    def submit_dag(self, most: float | None, costs: list[float | None], tree: float | None) -> None:
        tasks: list[dict[str, Any]] = [{"type": "code", "estimated_cost_usd": cost} for cost in costs]
        if tree is not None:
            tasks[0]["tree_budget_usd"] = tree
        made = self.wait(self.queue.submit_dag({"tasks": tasks, "budget_ceiling_usd": most}))
        self.dags.append(made[0].dag_id or "")

    @rule(which=index, cost=price, tree=st.sampled_from([None, 0.1]), wait=st.booleans())
    def spawn(self, which: int, cost: float | None, tree: float | None, *, wait: bool) -> None:
        fields = {"type": "code", "estimated_cost_usd": cost, "tree_budget_usd": tree}
        child = {name: value for name, value in fields.items() if value is not None}
        self.with_token(which, lambda token: self.queue.spawn(token, [child], wait=wait))

    @rule(agent=st.sampled_from(AGENTS), count=st.integers(1, 4))
    def claim(self, agent: str, count: int) -> None:
        before = {row["id"]: row for row in self.wait(sql(self.queue, "select * from budgets"))}
        taken = self.wait(self.queue.claim(agent, count, start=True))
        self.tokens += [assignment.token for assignment in taken]
        for row in self.wait(sql(self.queue, "select * from budgets where ceiling is not null")):
            was = before.get(row["id"], {"granted": 0})
            granted = row["granted"] > was["granted"]
            assert not granted or row["spent"] + row["granted"] <= row["ceiling"], "a grant passed a ceiling"

    @rule(which=index, cost=amount)
    def beat(self, which: int, cost: float) -> None:
        self.with_token(which, lambda token: self.queue.heartbeat(token, usage={"cost_usd": cost}))

    @rule(which=index, cost=st.one_of(st.just(0.0), amount))
    def complete(self, which: int, cost: float) -> None:
        self.with_token(which, lambda token: self.queue.complete(token, usage={"cost_usd": cost}))

    @rule(which=index, cost=st.one_of(st.just(0.0), amount))
    def fail(self, which: int, cost: float) -> None:
        self.with_token(which, lambda token: self.queue.fail(token, "crash", usage={"cost_usd": cost}))

    @rule(which=index)
    def release(self, which: int) -> None:
        self.with_token(which, self.queue.release)

    @rule(which=index, most=ceiling)
    def change(self, which: int, most: float | None) -> None:
        if self.dags:
            self.wait(self.queue.budgets.set("dag", self.dags[which % len(self.dags)], ceiling_usd=most))

    @rule(most=ceiling)
    def change_day(self, most: float | None) -> None:
        self.wait(self.queue.budgets.set("day", None, ceiling_usd=most))

    @rule(seconds=st.sampled_from([1, 95, 86_400]))
    def pass_time(self, seconds: int) -> None:
        self.wait(pass_time(self.queue, self.clock, seconds))

    def with_token(self, which: int, call: Any) -> None:
        """Report under a claim that may have ended: the report is then refused, but its usage is booked."""
        if self.tokens:
            with suppress(LeaseLost):
                self.wait(call(self.tokens[which % len(self.tokens)]))

    @invariant()
    def the_books_are_right(self) -> None:
        self.wait(check_books(self.queue))


@pytest.mark.timeout(0 if DEEP else 300)
def test_budgets_are_consistent_after_any_sequence_of_spending(opener: Opener) -> None:
    found = settings(SETTINGS, max_examples=SETTINGS.max_examples if DEEP else 12)
    run_state_machine_as_test(lambda: Spender(opener), settings=found)  # type: ignore[arg-type]  # a maker will do
