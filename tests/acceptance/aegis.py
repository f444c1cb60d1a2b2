"""Calls as written by someone who knows only the Aegis document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.running import Reply, Running, running

WORKSPACE = "7a0f6b1e-2f0a-4c43-9a53-0d6a4f0d4b11"
AGENT = "0d9ad2a4-6f3e-4b4c-8f0e-6a3a9f2c7d20"
ISSUE = "c1b6a1de-90a7-4a43-8a2a-5e1f4f1f9a31"
RUNTIME = "laptop-1"
STANDS_AT = 1_790_000_000.0


class Aegis:
    """One server in the document's profile; its calls use only names of the document."""

    def __init__(self, api: Running) -> None:
        self.api = api

    async def call(self, call: str, body: Any = None) -> Reply:
        """A call written as the document writes it: "POST /api/tasks/claim"."""
        method, path = call.split(" ")
        return await self.api.call(method, path, body)

    async def ask(self, call: str, body: Any = None) -> Any:
        """Return the answer to a call that must succeed."""
        reply = await self.call(call, body)
        assert reply.status in {200, 201}, reply
        return reply.json

    async def pass_time(self, seconds: float, *alive: str) -> None:
        """Let time pass while these runtimes send heartbeats and the server runs its maintenance jobs."""
        while seconds > 0:
            for runtime in alive:
                await self.ask(f"POST /api/runtimes/{runtime}/heartbeat")
            step = min(70.0, seconds) if alive else seconds
            await self.api.pass_time(step)
            seconds -= step

    async def create(self, **fields: Any) -> dict[str, Any]:
        """A queued task for the agent and the issue, unless said otherwise."""
        given = {"workspace_id": WORKSPACE, "agent_id": AGENT, "issue_id": ISSUE, "trigger_type": "assignment"}
        task: dict[str, Any] = await self.ask("POST /api/tasks", {**given, **fields})
        return task

    async def get(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/tasks/{task['id']}")
        return found

    async def listed(self, filters: str = f"issue={ISSUE}") -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = (await self.ask(f"GET /api/tasks?{filters}"))["tasks"]
        return tasks

    async def statuses(self) -> list[str]:
        """Return the statuses of the issue's tasks, oldest first."""
        return [task["status"] for task in await self.listed()]

    async def told(self, task: dict[str, Any]) -> list[str]:
        """Return the document's events about a task, in order."""
        page = await self.ask(f"GET /api/events?task={task['id']}")
        return [event["event"] for event in page["events"]]

    async def claim(self, runtime: str = RUNTIME) -> Any:
        """The next queued task for this runtime, or None."""
        return (await self.ask("POST /api/tasks/claim", {"runtime_id": runtime}))["task"]

    async def dispatched(self, runtime: str = RUNTIME, **fields: Any) -> dict[str, Any]:
        """A new task that the runtime has claimed."""
        made = await self.create(**fields)
        claimed: dict[str, Any] = await self.claim(runtime)
        assert claimed["id"] == made["id"]
        return claimed

    async def running(self, runtime: str = RUNTIME, **fields: Any) -> dict[str, Any]:
        """A new task that the runtime works on."""
        claimed = await self.dispatched(runtime, **fields)
        started: dict[str, Any] = await self.ask(f"POST /api/tasks/{claimed['id']}/start")
        return started

    async def report(self, task: dict[str, Any], verb: str, **body: Any) -> dict[str, Any]:
        """Send a daemon's report about its task: start, complete, fail, progress, session."""
        after: dict[str, Any] = await self.ask(f"POST /api/tasks/{task['id']}/{verb}", body)
        return after


@asynccontextmanager
async def served(store_url: str, patch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Aegis]:
    """Run a server whose clock only the test moves, so that 4:59 is 4:59."""
    patch.setattr("shiftwork.server.state.time", SimpleNamespace(time=lambda: STANDS_AT))
    async with running(store_url, profile="aegis", **options) as api:
        yield Aegis(api)
