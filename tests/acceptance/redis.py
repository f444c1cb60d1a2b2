"""The Redis Streams protocol: a server, a bridge, and workers that use only a Redis client."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.bridges.redis.streams import Client, Entry, HandWorker, orchestrator
from tests.conformance.steps import sql
from tests.server.running import Running, running

STANDS_AT = 1_790_000_000.0


class Protocol:
    """One server in the protocol's profile, with a bridge that scans after every call."""

    def __init__(self, api: Running, redis: Client, url: str) -> None:
        self.api = api
        self.redis = redis
        self.queue = api.state.queue
        self.bridge = orchestrator(self.queue, url)
        self._numbers = itertools.count(1)

    async def ask(self, call: str, body: Any = None) -> Any:
        """Return the answer to a call that must succeed, in the protocol's names."""
        method, path = call.split(" ")
        reply = await self.api.call(method, path, body)
        assert reply.status in {200, 201}, reply
        return reply.json

    async def look(self) -> None:
        await self.bridge.run_once()

    async def pass_time(self, seconds: float) -> None:
        """Move the server's clock and run its maintenance jobs."""
        await self.api.pass_time(seconds)
        await self.look()

    async def create(self, **fields: Any) -> dict[str, Any]:
        """A task with a key of its own, unless one is given."""
        given = {"tool_name": "send_mail", "payload": {"to": "ada"}, "idempotency_key": f"key-{next(self._numbers)}"}
        made: dict[str, Any] = await self.ask("POST /api/tasks", {**given, **fields})
        await self.look()
        return made

    async def get(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/tasks/{task['task_id']}")
        return found

    async def status(self, task: dict[str, Any]) -> str:
        return str((await self.get(task))["status"])

    async def event_log(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """What the database table holds about a task, in order."""
        named = task["task_id"]
        return await sql(self.queue, f"select * from event_log where task_id = '{named}' order by id, part")

    async def logged(self, task: dict[str, Any]) -> list[str]:
        return [row["event_type"] for row in await self.event_log(task)]

    def worker(self, name: str = "worker-1") -> HandWorker:
        return HandWorker(self.redis, name)

    async def taken(self, task: dict[str, Any], name: str = "worker-1") -> Entry:
        """The task's entry, as this worker reads it."""
        entry = await self.worker(name).read_one()
        assert entry[1]["task_id"] == task["task_id"]
        await self.look()
        return entry

    async def token(self, task: dict[str, Any]) -> str:
        """Return the claim token of an entry's worker, for its HTTP calls."""
        return str((await self.get(task))["message_id"])

    async def fail(self, task: dict[str, Any], error: str) -> None:
        await self.worker().fail(await self.taken(task), error)
        await self.look()


@asynccontextmanager
async def served(store_url: str, redis_url: str, patch: pytest.MonkeyPatch) -> AsyncIterator[Protocol]:
    """Run a server whose clock only the test moves."""
    patch.setattr("shiftwork.server.state.time", SimpleNamespace(time=lambda: STANDS_AT))
    redis = Redis.from_url(redis_url, decode_responses=True)
    async with running(store_url, profile="redis") as api:
        protocol = Protocol(api, redis, redis_url)
        await api.call("PATCH", "/api/settings", {"profile": "redis"})  # where the workspace was there before
        yield protocol
        await protocol.bridge.context.redis.aclose()
    await redis.aclose()
