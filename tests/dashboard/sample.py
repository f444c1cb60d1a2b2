"""A queue as a small fleet leaves it after an afternoon, with everything the dashboard shows."""

from __future__ import annotations

import os
import random
from typing import Any
from unittest.mock import patch

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.batches.fake_provider import FakeProvider
from tests.batches.steps import submit as submit_batches

AGENTS = {
    "otto": ("research", "synthesis"),
    "mimi": ("code", "test"),
    "juno": ("code", "review"),
    "vera": ("review", "design"),
    "kai": ("deploy", "test"),
}
MODELS = ("large-1", "small-2")
TITLES = {
    "research": ("Survey vector databases", "Summarise the incident of Tuesday", "Compare three pricing pages"),
    "code": ("Add retries to the importer", "Port the parser to the new grammar", "Cache the profile endpoint"),
    "review": ("Review the importer's retries", "Read the migration for locks", "Check the new headers"),
    "test": ("Write tests for the parser", "Run the browser suite", "Load-test the profile endpoint"),
    "design": ("Sketch the empty states", "Choose icons for the sidebar", "Redraw the sign-up form"),
}
ACCOUNTS = ("team-a", "team-b")
LANDING_PAGE: dict[str, Any] = {
    "title": "Build a landing page",
    "created_by": "human:ada",
    "budget_ceiling_usd": 12.0,
    "tasks": [
        {"key": "research", "type": "research", "title": "Research competitors"},
        {"key": "brand", "type": "design", "title": "Collect the brand's colours"},
        {"key": "wire", "type": "design", "title": "Design a wireframe", "dependencies": ["research", "brand"]},
        {"key": "copy", "type": "synthesis", "title": "Write the copy", "dependencies": ["research"]},
        {"key": "page", "type": "code", "title": "Implement the page", "dependencies": ["wire", "copy"]},
        {"key": "form", "type": "code", "title": "Implement the sign-up form", "dependencies": ["wire"]},
        {"key": "check", "type": "review", "title": "Review the code", "dependencies": ["page", "form"]},
        {"key": "test", "type": "test", "title": "Test in three browsers", "dependencies": ["page", "form"]},
        {"key": "ship", "type": "deploy", "title": "Ship it", "dependencies": ["check", "test"]},
    ],
}
QUESTION = {
    "type": "object",
    "required": ["headline", "launch"],
    "properties": {
        "headline": {"type": "string", "title": "Headline", "description": "Shown above the fold", "maxLength": 80},
        "launch": {"type": "string", "title": "When to launch", "enum": ["today", "tomorrow", "next week"]},
        "discount": {"type": "integer", "title": "Discount in percent", "minimum": 0, "maximum": 50},
        "announce": {"type": "boolean", "title": "Announce it by mail"},
    },
}


TRIGGERS: dict[str, Any] = {
    "nightly-audit": (
        {"kind": "cron", "at": "30 2 * * *", "zone": "Europe/Berlin"},
        {"type": "audit", "title": "Nightly audit"},
    ),
    "pull-requests": ({"kind": "hook", "signature": "github"}, {"type": "review", "title": "Review a pull request"}),
    "inbox": ({"kind": "file", "pattern": "inbox/*.md"}, {"type": "research", "title": "Read what came in"}),
}
PAGE_FROM = 23
"""The turn in which the landing page begins: it is half done at the end."""

BEAT_SEC = 25.0
LASTS_SEC = 7190
"""How long the story takes by the clock: it is told so that it ends now."""


BATCHES_FROM, BATCHES_ANSWERED = 6, 16
"""The turns in which work for batches comes, and after which one provider has answered."""


async def fill(queue: Queue, clock: MovedClock, *, chance: int = 7) -> None:
    """Simulate two hours, with batch providers on 127.0.0.1."""
    queue.engine.private_sinks = True
    with FakeProvider(clock).running() as provider, patch.dict(os.environ, provider.environment()):
        await _live(queue, clock, provider, chance)


async def _live(queue: Queue, clock: MovedClock, provider: FakeProvider, chance: int) -> None:
    fleet = Fleet(queue, clock, random.Random(chance))
    await fleet.hire()
    await queue.settings.set("guards", [{"type": "deploy"}])
    await queue.budgets.set("day", ceiling_usd=40.0)
    for turn in range(26):
        if turn == BATCHES_FROM:
            await submit_batches(queue, "Classify ticket 1", "Classify ticket 2", "error", provider="openai")
            await submit_batches(queue, "Summarise the logs of Monday", "Summarise the logs of Tuesday")
        if turn == BATCHES_ANSWERED:
            next(batch for batch in provider.batches.values() if batch.metadata).status = "completed"
        if turn == PAGE_FROM:
            await queue.as_caller("human:ada").submit_dag(LANDING_PAGE)
        await fleet.submit_some()
        await fleet.work_a_while()
    await fleet.break_things()
    await fleet.ask_people()
    await queue.cooldowns.set("provider:acme", 900, "429 from acme, retry after 15 min")
    await queue.limits.set("model:large-1", requests=60, window_sec=60)
    for name, (source, task) in TRIGGERS.items():
        await queue.as_caller("human:lin").triggers.save(name, on=source, task=task)
    await fleet.leave_work_open()


class Fleet:
    """Agents without processes: they claim, work and submit by the clock."""

    def __init__(self, queue: Queue, clock: MovedClock, chance: random.Random) -> None:
        self.queue = queue
        self.clock = clock
        self.chance = chance

    async def hire(self) -> None:
        windows = [
            {"name": "five_hour", "unit": "tokens", "capacity": 2_000_000},
            {"name": "seven_day", "unit": "usd", "capacity": 200},
        ]
        for account in ACCOUNTS:
            await self.queue.accounts.set("anthropic", account, windows=windows)
        for number, (name, types) in enumerate(AGENTS.items()):
            account = ACCOUNTS[number % len(ACCOUNTS)]
            await self.queue.agents.register(
                id=name, types=list(types), max_concurrent_tasks=2, provider="anthropic", account=account
            )

    async def submit_some(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            type_ = self.chance.choice(list(TITLES))
            title = self.chance.choice(TITLES[type_])
            priority = self.chance.choice((10, 30, 50, 50, 70, 90))
            await self.queue.as_caller(self.chance.choice(("human:ada", "cron:nightly", "human:lin"))).submit(
                type=type_, title=title, priority=priority, tags=[f"team:{self.chance.choice(('web', 'data'))}"],
                payload={"ticket": self.chance.randint(100, 999)},
            )  # fmt: skip

    async def work_a_while(self) -> None:
        for name in AGENTS:
            for held in await self.queue.claim(name, start=True):
                await self._work(name, held.token, held.type)
        await self.rest(self.chance.uniform(90, 240))

    async def rest(self, seconds: float) -> None:
        """Let time pass while all agents send heartbeats."""
        while seconds > BEAT_SEC:
            self.clock.advance(BEAT_SEC)
            seconds -= BEAT_SEC
            for name in AGENTS:
                await self.queue.agents.heartbeat(name)
        await pass_time(self.queue, self.clock, seconds)

    async def _work(self, name: str, token: str, type_: str) -> None:
        queue, clock, chance = self.queue, self.clock, self.chance
        usage = {
            "cost_usd": round(chance.uniform(0.02, 0.6), 4),
            "tokens_in": chance.randint(800, 9000),
            "tokens_out": chance.randint(200, 2400),
            "model": chance.choice(MODELS),
        }
        await queue.claims.message(token, "text", f"{name} reads what is there")
        await queue.steps.complete(token, "gather", {"sources": chance.randint(2, 9)})
        clock.advance(chance.uniform(5, 40))
        await queue.heartbeat(token, {"pct": 60, "message": "halfway"})
        await queue.claims.message(token, "tool_call", "search", {"query": f"{type_} best practice"})
        clock.advance(chance.uniform(2, 30))
        if chance.random() < 0.12:
            await queue.fail(token, "timeout", "the provider did not answer within 30 s", usage=usage)
        else:
            await queue.complete(token, {"summary": f"{type_} done", "score": chance.randint(60, 99)}, usage=usage)

    async def break_things(self) -> None:
        """Let a type fail until its tasks are dead letters and its breaker is open."""
        for number in range(6):
            await self.queue.submit(type="import", title=f"Import the batch of {number + 1} June", max_attempts=1)
        await self.queue.agents.register(id="ines", types=["import"], max_concurrent_tasks=6)
        for held in await self.queue.claim("ines", 6, start=True):
            self.clock.advance(1)
            await self.queue.fail(held.token, "crash", "KeyError: 'customer_id' in row 118", retry=False)
        await pass_time(self.queue, self.clock, 5)

    async def ask_people(self) -> None:
        task = await self.queue.submit(type="synthesis", title="Write the launch mail", priority=5)
        for held in await self.queue.claim("otto", 2, types=["synthesis"], start=True):
            if held.id == task.id:
                await self.queue.waits.wait(held.token, "launch", question="What should the mail say?", schema=QUESTION)
            else:
                await self.queue.release(held.token)
        await self.queue.submit(type="deploy", title="Deploy the importer to production", priority=8)

    async def leave_work_open(self) -> None:
        for type_, titles in TITLES.items():
            for title in titles:
                await self.queue.submit(type=type_, title=title, priority=self.chance.choice((20, 50, 80)))
        await self.queue.submit(type="translate", title="Translate the docs into Dutch")
        for name in ("otto", "mimi", "juno"):
            for held in await self.queue.claim(name, start=True):
                await self.queue.claims.message(held.token, "text", "on it")
                await self.queue.heartbeat(held.token, {"pct": self.chance.randint(10, 80)})
