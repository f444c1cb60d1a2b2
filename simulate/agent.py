"""Simulated agents: they claim, pay for calls, store each call as a step, and sometimes die."""

from __future__ import annotations

import math
import random
from typing import Any

from shiftwork import Queue
from shiftwork.model.errors import LeaseLost
from simulate.plan import CALL_USD
from simulate.provider import Provider

THINK_SEC = (4.0, 16.0)
"""The pause between two calls."""
MAX_BACKOFF_SEC = 60.0
DEATHS = 0.01
"""The share of claims after which the agent dies silently and is restarted later."""
RESTART_SEC = 600.0


class Agent:
    """One agent. Each step returns when to call it again, or None to call it when there is work."""

    def __init__(self, queue: Queue, name: str, provider: Provider, chance: random.Random, *, shares: bool) -> None:
        self.name = name
        self.provider = provider
        self._queue = queue
        self._chance = chance
        self._shares = shares
        """Whether it reports refusals to the queue and obeys cooldowns; otherwise it backs off by itself."""
        self._held: Any = None
        self._calls_left = 0
        self._refusals = 0
        self.deaths = 0

    @property
    def holds(self) -> bool:
        return self._held is not None

    async def register(self, budget_usd: float) -> None:
        await self._queue.agents.register(
            id=self.name,
            max_concurrent_tasks=1,
            provider=self.provider.name,
            budget_remaining_usd=budget_usd,
        )

    async def step(self, now: float) -> float | None:
        if self._held is None:
            return await self._take_work(now)
        try:
            return await self._continue(now)
        except LeaseLost:
            self._held = None
            return now

    async def _take_work(self, now: float) -> float | None:
        claimed = await self._queue.claim(self.name, start=True)
        if not claimed:
            return None
        if self._chance.random() < DEATHS:
            self.deaths += 1
            return now + RESTART_SEC
        self._held = claimed[0]
        done = len(await self._queue.steps.list(self._held.id))
        self._calls_left = self._held.payload["calls"] - done
        return now + self._pause()

    def _pause(self) -> float:
        return self._chance.uniform(*THINK_SEC)

    async def _continue(self, now: float) -> float:
        """Make the next call unless a cooldown forbids it, or report the result."""
        answer = await self._queue.heartbeat(self._held.token)
        if answer.action != "continue":
            self._held = None
            return now
        if self._calls_left == 0:
            await self._queue.complete(self._held.token)
            self._held = None
            return now
        if (cooldown_ends := await self._cooldown_ends(now)) > now:
            return cooldown_ends
        wait = self.provider.call(now)
        if wait is not None:
            return await self._refused(now, wait)
        self._refusals, self._calls_left = 0, self._calls_left - 1
        name, spent = f"call {self._calls_left}", {"cost_usd": CALL_USD, "tokens_in": 900, "tokens_out": 300}
        await self._queue.steps.complete(self._held.token, name, "said", usage=spent)
        return now + self._pause()

    async def _cooldown_ends(self, now: float) -> float:
        """Return the end of a cooldown of the provider, which also applies to tasks already claimed."""
        if not self._shares:
            return now
        key = f"provider:{self.provider.name}"
        return max((each.until or now for each in await self._queue.cooldowns.list() if each.key == key), default=now)

    async def _refused(self, now: float, wait: float) -> float:
        if not self._shares:
            self._refusals += 1
            return now + min(MAX_BACKOFF_SEC, 2.0**self._refusals) * self._chance.uniform(0.5, 1.0)
        await self._queue.fail(self._held.token, "rate_limit", f"429 Too Many Requests, Retry-After: {math.ceil(wait)}")
        self._held = None
        return now
