"""The calls of the Loki document as its orchestrator and its agents make them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shiftwork.views.view import time_in
from tests.server.running import Running, running

STANDS_AT = 1_790_000_000.0
WORKSPACE = "loki"
REPORT = {"decision": "as asked", "alternatives": []}


class Loki:
    """One server in the document's profile; its calls use the document's names and a workspace."""

    def __init__(self, api: Running) -> None:
        self.api = api
        self._numbers = itertools.count()

    async def ask(self, call: str, body: Any = None) -> Any:
        """Return the answer to a call such as "POST /api/tasks", which must succeed."""
        method, path = call.split(" ")
        reply = await self.api.call(method, _here(path), body)
        assert reply.status in {200, 201}, reply
        return reply.json

    async def read(self, path: str) -> Any:
        """Read facts that the document does not define."""
        return await self.api.get(_here(path))

    async def now(self) -> float:
        """Return the seconds by which the test has moved the clock."""
        return time_in((await self.read("/api/me"))["now"]) - STANDS_AT

    async def pass_time(self, seconds: float) -> None:
        await self.api.pass_time(seconds)

    async def enqueue(self, type_: str = "eng-backend", **fields: Any) -> dict[str, Any]:
        """A task that is not a duplicate of another: its payload is its own."""
        payload = {"action": "implement", "n": next(self._numbers)}
        task: dict[str, Any] = await self.ask("POST /api/tasks", {"type": type_, "payload": payload, **fields})
        return task

    async def breaker(self, type_: str = "eng-backend") -> dict[str, Any]:
        found = await self.ask(f"GET /api/breakers?type={type_}")
        breaker: dict[str, Any] = found["circuitBreakers"][type_]
        return breaker

    async def alerts(self) -> list[str]:
        return [alert["message"] for alert in (await self.read("/api/alerts"))["alerts"]]

    async def claim(self, agent: str = "a1", *types: str) -> Any:
        """The task this agent gets, or None."""
        body = {"agent_id": agent, **({"types": list(types)} if types else {})}
        return (await self.ask("POST /api/tasks/claim", body))["task"]

    async def complete(self, task: dict[str, Any], agent: str = "a1") -> Any:
        body = {"agent_id": agent, "output": "done", "decisionReport": REPORT}
        return await self.ask(f"POST /api/tasks/{task['id']}/complete", body)

    async def fail(self, task: dict[str, Any], error: str = "it broke", agent: str = "a1", **fields: Any) -> Any:
        return await self.ask(f"POST /api/tasks/{task['id']}/fail", {"agent_id": agent, "error": error, **fields})

    async def dead_letter(self, count: int, type_: str = "eng-backend") -> None:
        """Create this many dead letters of a type."""
        for _ in range(count):
            await self.enqueue(type_, maxRetries=1)
            await self.fail(await self.claim("a1", type_))


def _here(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}workspace={WORKSPACE}"


@asynccontextmanager
async def served(store_url: str, patch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Loki]:
    """Run a server whose clock only the test moves."""
    patch.setattr("shiftwork.server.state.time", SimpleNamespace(time=lambda: STANDS_AT))
    async with running(store_url, profile="loki", **options) as api:
        yield Loki(api)
