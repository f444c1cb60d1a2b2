"""A simulated week: four accounts with 5-hour and weekly windows, and a thousand tasks, simulated twice.

In one week the queue chooses an account for each claim and pauses those that are used up. In the other, each agent has
its own account and backs off by itself.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from shiftwork import Queue
from shiftwork.maintenance.loop import run_once
from shiftwork.testing import MovedClock
from simulate.subscription import FIVE_HOURS, Subscription

MONDAY = 1_765_756_800.0
HOUR = 3600.0
CALL_SEC = 360.0
"""The time of one call and of the agent's work after it."""
CALL_TOKENS = 8_000
MODEL = "gpt-5"
"""Its public price gives the cost of tokens, since agents report none."""
BACKOFF_SEC = (30.0, 900.0)
"""The first and the longest pause of an agent that backs off by itself."""
MAINTENANCE_SEC = 300.0
ENOUGH = 0.93
"""The share of the work that all accounts together can do in a week, so that there is always more."""

Action = Callable[[], Awaitable[None]]


class Size(NamedTuple):
    """The size of a week."""

    tasks: int = 1000
    accounts: int = 4
    agents: int = 12
    days: float = 7.0
    seed: int = 7


class Agent:
    """One agent. Each step returns when to call it again, or None to call it when there is work."""

    def __init__(self, queue: Queue, name: str, subscriptions: dict[str, Subscription], own: str | None) -> None:
        self.name = name
        self._queue = queue
        self._subscriptions = subscriptions
        self._own = own
        """The account of an agent that backs off by itself; None if the queue chooses the account."""
        self._held: Any = None
        self._calls_left = 0
        self._refusals = 0

    async def register(self) -> None:
        accounts = [self._own] if self._own is not None else sorted(self._subscriptions)
        await self._queue.agents.register(id=self.name, provider="vendor", accounts=accounts, max_concurrent_tasks=1)

    async def step(self, now: float) -> float | None:
        if self._held is None:
            found = await self._queue.claim(self.name, start=True)
            if not found:
                return None
            self._held = found[0]
            self._calls_left = self._held.payload["calls"] - len(await self._queue.steps.list(self._held.id))
        if self._calls_left == 0:
            await self._queue.complete(self._held.token)
            self._held = None
            return now
        return await self._call(now)

    async def _call(self, now: float) -> float:
        subscription = self._subscriptions[self._own or self._held.account]
        if not subscription.call(CALL_TOKENS, now):
            return await self._refused(now, subscription)
        self._refusals = 0
        self._calls_left -= 1
        used = {"tokens_in": CALL_TOKENS - 200, "tokens_out": 200, "model": MODEL}
        await self._queue.steps.complete(self._held.token, f"call {self._calls_left}", "said", usage=used)
        if self._own is None and self._calls_left:
            headers = subscription.headers(now)
            await self._queue.accounts.report(self._held.token, headers=headers)
            if subscription.is_used_up(now):  # release the task before the next call is refused
                await self._queue.release(self._held.token, "the account is used up")
                self._held = None
                return now
        return now + CALL_SEC

    async def _refused(self, now: float, subscription: Subscription) -> float:
        if self._own is not None:
            self._refusals += 1
            first, longest = BACKOFF_SEC
            return now + min(longest, first * 2.0 ** (self._refusals - 1))
        data = {"status": 429, "headers": subscription.headers(now)}
        await self._queue.fail(self._held.token, None, "429 Too Many Requests", data=data)
        self._held = None
        return now


class Week:
    """The simulated world: a queue, its agents, their subscriptions, and a schedule of events."""

    def __init__(self, queue: Queue, clock: MovedClock, size: Size, *, managed: bool) -> None:
        self._queue = queue
        self._clock = clock
        self._size = size
        chance = random.Random(size.seed)
        self._calls = [chance.randint(2, 14) for _ in range(size.tasks)]
        self.until = MONDAY + size.days * 24 * HOUR
        self.subscriptions = self._subscriptions()
        names = sorted(self.subscriptions)
        self._agents = [
            Agent(queue, f"agent-{n}", self.subscriptions, None if managed else names[n % len(names)])
            for n in range(size.agents)
        ]
        self._events: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._idle: dict[str, Agent] = {}
        self.cost_usd = 0.0
        self.counts: dict[str, int] = {}

    def _subscriptions(self) -> dict[str, Subscription]:
        """Make subscriptions of different sizes. Their 5-hour windows add up to 1.4 weeks, as with real ones."""
        shares = [1.0 + 0.5 * number for number in range(self._size.accounts)]
        windows = self._size.days * 24 * HOUR / FIVE_HOURS
        made = {}
        for number, share in enumerate(shares):
            week = ENOUGH * sum(self._calls) * share / sum(shares)
            five = round(1.4 * week / windows) * CALL_TOKENS
            made[f"account-{number}"] = Subscription(five, round(week) * CALL_TOKENS, self._size.days * 24 * HOUR)
        return made

    async def live(self) -> None:
        await self._begin()
        while self._events and self._clock() < self.until:
            at, _, action = heapq.heappop(self._events)
            self._clock.advance(max(0.0, min(at, self.until) - self._clock()))
            if at < self.until:
                await action()
        for subscription in self.subscriptions.values():
            subscription.close(self.until)
        self.cost_usd = (await self._queue.budgets.costs("model")).total_usd
        self.counts = dict((await self._queue.status()).counts)

    async def _begin(self) -> None:
        await self._queue.settings.set("rate_limit.max_waits", 1000)
        never = ("heartbeat_timeout_sec", "agent_timeout_sec", "timeout_sec")  # an agent that backs off is not dead
        await self._queue.settings.change(dict.fromkeys(never))
        tasks = [{"type": "code", "payload": {"calls": calls, "n": n}} for n, calls in enumerate(self._calls)]
        await self._queue.submit_many(tasks)
        for agent in self._agents:
            await agent.register()
            self._at(MONDAY, lambda agent=agent: self._step(agent))  # type: ignore[misc]  # mypy cannot type the default
        self._at(MONDAY, self._maintain)

    def _at(self, when: float, action: Action) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), action))

    async def _maintain(self) -> None:
        await run_once(self._queue.engine)
        for agent in self._idle.values():
            self._at(self._clock(), lambda agent=agent: self._step(agent))  # type: ignore[misc]  # as above
        self._idle.clear()
        self._at(self._clock() + MAINTENANCE_SEC, self._maintain)

    async def _step(self, agent: Agent) -> None:
        again = await agent.step(self._clock())
        if again is None:
            self._idle[agent.name] = agent
        else:
            self._at(again, lambda: self._step(agent))


async def one_week(folder: Path, size: Size, *, managed: bool, store: str | None = None) -> Week:
    """Simulate a week on a new queue."""
    clock = MovedClock(MONDAY)
    url = store or f"sqlite:///{folder}/{'week' if managed else 'week-alone'}.db"
    async with Queue.open(url, clock=clock, seed=size.seed) as queue:
        week = Week(queue, clock, size, managed=managed)
        await week.live()
        return week
