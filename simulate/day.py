"""One simulated day: events in order of their time, each finished before the clock moves on."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from simulate.agent import Agent
from simulate.ledger import Ledger
from simulate.plan import CALL_USD, HOUR, Arrival, plan
from simulate.provider import Provider

MIDNIGHT = 1_765_843_200.0
MAINTENANCE_SEC = 20.0
QUIET_SEC = 300.0
"""The interval of maintenance while almost all agents are idle."""
PER_MINUTE = 30
EVENING = 20 * HOUR
PATIENCE_DAYS = 3
"""Work that is not done by then never will be."""

Action = Callable[[], Awaitable[None]]


class Size(NamedTuple):
    """The size of a day."""

    tasks: int = 1500
    agents: int = 40
    providers: int = 2
    hours: float = 24.0
    seed: int = 7


class Day:
    """The simulated world: a queue, its fleet, the arrivals, and a schedule of events."""

    def __init__(self, queue: Queue, clock: MovedClock, size: Size, *, shares: bool) -> None:
        self._queue = queue
        self._clock = clock
        self._size = size
        self._shares = shares
        chance = random.Random(size.seed)
        self._arrivals = plan(chance, size.tasks, size.hours)
        self.providers = [Provider(f"provider-{n}", PER_MINUTE) for n in range(size.providers)]
        self._agents = [self._agent(number) for number in range(size.agents)]
        self.ledger = Ledger(queue)
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._idle: dict[str, Agent] = {}
        self._to_come = len(self._arrivals)

    def _agent(self, number: int) -> Agent:
        provider = self.providers[number % len(self.providers)]
        chance = random.Random(f"{self._size.seed} {number}")
        return Agent(self._queue, f"agent-{number}", provider, chance, shares=self._shares)

    @property
    def deaths(self) -> int:
        return sum(agent.deaths for agent in self._agents)

    async def live(self) -> None:
        """Run from midnight until everything is done."""
        await self._open_for_business()
        while self._events and not await self._is_over():
            at, _, action = heapq.heappop(self._events)
            self._clock.advance(max(0.0, at - self._clock()))
            await action()
        await self.ledger.close(self._clock() - MIDNIGHT)

    async def _open_for_business(self) -> None:
        planned = sum(task["estimated_cost_usd"] for arrival in self._arrivals for task in arrival.tasks)
        await self._queue.settings.set("budget.daily_usd", round(planned * 0.8, 2))
        await self._queue.settings.set("cooldown.others", 1.0 if self._shares else 0.0)
        await self._queue.settings.set("rate_limit.max_waits", 1000)
        for number, agent in enumerate(self._agents):
            await agent.register(budget_usd=round(planned, 2) if number else 10 * CALL_USD)
            self._idle[agent.name] = agent
        for arrival in self._arrivals:
            self._at(MIDNIGHT + arrival.at, lambda arrival=arrival: self._arrive(arrival))  # type: ignore[misc]  # mypy cannot type the default
        self._at(MIDNIGHT, self._maintain)
        self._at(MIDNIGHT + EVENING * self._size.hours / 24, self._raise_ceilings)

    def _at(self, when: float, action: Action) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    async def _is_over(self) -> bool:
        """Return whether nothing is left to arrive, to run or to wait for."""
        if self._to_come or len(self._idle) < len(self._agents):
            return False
        if self._clock() > MIDNIGHT + PATIENCE_DAYS * 24 * HOUR:
            return True
        counts = (await self._queue.status()).counts
        return not any(counts.get(status) for status in ("pending", "ready", "retrying", "claimed", "running"))

    async def _arrive(self, arrival: Arrival) -> None:
        self._to_come -= 1
        made = await self._queue.submit_dag({"tasks": arrival.tasks, "budget_ceiling_usd": arrival.ceiling_usd})
        self.ledger.submitted(made, arrival)
        self._wake()

    async def _maintain(self) -> None:
        await run_once(self._queue.engine)
        self._wake()
        is_quiet = len(self._idle) + len(self.providers) >= len(self._agents)
        self._at(self._clock() + (QUIET_SEC if is_quiet else MAINTENANCE_SEC), self._maintain)

    async def _raise_ceilings(self) -> None:
        """From the evening on, raise the ceilings that hold back work every hour, as an operator would."""
        await self.ledger.check()
        for budget in await self._queue.budgets.list("dag", limit=1000):
            if budget.holds_back and budget.ceiling_usd is not None:
                await self._queue.budgets.set("dag", budget.id, ceiling_usd=4 * budget.ceiling_usd)
                self.ledger.raised += 1
        await self._queue.budgets.set("day", ceiling_usd=1000.0)
        self._wake()
        self._at(self._clock() + HOUR, self._raise_ceilings)  # agents that died have spent money

    def _wake(self) -> None:
        """Let one idle agent of each provider look for work; an agent that finds some wakes the next."""
        for provider in self.providers:
            agent = next((agent for agent in self._idle.values() if agent.provider is provider), None)
            if agent is not None:
                del self._idle[agent.name]
                self._at(self._clock(), lambda agent=agent: self._step(agent))  # type: ignore[misc]  # as above

    async def _step(self, agent: Agent) -> None:
        was_idle = not agent.holds
        again = await agent.step(self._clock())
        if again is None:
            self._idle[agent.name] = agent
            return
        await self.ledger.check()
        if was_idle:
            self._wake()
        self._at(again, lambda: self._step(agent))


async def one_day(folder: Path, size: Size, *, shares: bool, store: str | None = None) -> Day:
    """Simulate a day on a new queue, with agents that share their refusals or do not."""
    clock = MovedClock(MIDNIGHT)
    url = store or f"sqlite:///{folder}/{'shared' if shares else 'alone'}.db"
    async with Queue.open(url, clock=clock, seed=size.seed) as queue:
        day = Day(queue, clock, size, shares=shares)
        await day.live()
        return day
