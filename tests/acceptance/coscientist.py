"""The calls of the co-scientist's document as its Supervisor and its workers make them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.running import Reply, Running, running

STANDS_AT = 1_790_000_000.0
WORKSPACE = "lab"
PRIORITIES = {"High": 20, "Medium": 50, "Low": 70}
PAGE = 1000


class Coscientist:
    """One queue of the document, with its settings and in its names."""

    def __init__(self, api: Running) -> None:
        self.api = api
        self._numbers = itertools.count()

    async def call(self, call: str, body: Any = None) -> Reply:
        """A call written as "POST /api/tasks", in the document's names."""
        method, path = call.split(" ")
        return await self.api.call(method, f"{_here(path)}&view=coscientist", body)

    async def ask(self, call: str, body: Any = None) -> Any:
        """The answer to a call that must be good."""
        reply = await self.call(call, body)
        assert reply.status in {200, 201}, reply
        return reply.json

    async def read(self, path: str) -> Any:
        """What the document has no names for."""
        return await self.api.get(_here(path))

    async def pass_time(self, seconds: float) -> None:
        await self.api.pass_time(seconds)

    # -- the Supervisor --------------------------------------------------------------------------------------------

    def task(self, priority: str, **fields: Any) -> dict[str, Any]:
        """A task that is no duplicate of another: its payload is its own."""
        return {"agent_type": "Ranking", "priority": priority, "payload": {"n": next(self._numbers)}, **fields}

    async def submit(self, priority: str, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = await self.ask("POST /api/tasks", self.task(priority, **fields))
        return made

    async def refused(self, priority: str) -> Reply:
        return await self.call("POST /api/tasks", self.task(priority))

    async def fill(self, priority: str, count: int) -> None:
        """Many tasks of one level, a batch at a time."""
        for left in range(count, 0, -PAGE):
            batch = [
                {"type": "Ranking", "priority": PRIORITIES[priority], "payload": {"n": next(self._numbers)}}
                for _ in range(min(PAGE, left))
            ]
            await self.api.post(_here("/api/tasks"), batch)

    async def query(self) -> dict[str, Any]:
        """The command Query: QueueStatus."""
        found: dict[str, Any] = await self.read("/api/queue?fresh=true")
        return found

    async def get(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/tasks/{task['id']}")
        return found

    async def configure(self, **settings: Any) -> None:
        reply = await self.api.call("PATCH", _here("/api/settings"), {"set": settings})
        assert reply.status == 200, reply

    async def settings(self) -> dict[str, Any]:
        """QueueConfig as it is in force."""
        return {each["key"]: each["value"] for each in (await self.read("/api/settings"))["settings"]}

    async def alerts(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.read(f"/api/alerts?open_only=true&kind={kind}"))["alerts"]
        return found

    async def told(self, *names: str) -> list[str]:
        """What the Supervisor is told of these, in order."""
        events, after = [], 0
        while page := (await self.read(f"/api/events?after={after}&limit=1000"))["events"]:
            events += page
            after = page[-1]["seq"]
        return [name for event in events for name in event["names"] if name in names]

    # -- workers ---------------------------------------------------------------------------------------------------

    async def register(self, worker: str) -> dict[str, Any]:
        registered: dict[str, Any] = await self.ask("POST /api/agents", {"worker_id": worker})
        return registered

    async def workers(self) -> dict[str, str]:
        """The worker list: who is what."""
        listed = (await self.ask("GET /api/agents"))["agents"]
        return {worker["worker_id"]: worker["status"] for worker in listed}

    async def request(self, worker: str, **options: Any) -> Any:
        """The command Request, acknowledged at once: an Assignment or None."""
        body = {"agent_id": worker, "start": True, **options}
        tasks = (await self.api.post(_here("/api/tasks/claim"), body))["assignments"]
        return tasks[0] if tasks else None

    async def heartbeat(self, assignment: dict[str, Any]) -> None:
        await self._under(assignment, "heartbeat")

    async def complete(self, assignment: dict[str, Any]) -> None:
        await self._under(assignment, "complete")

    async def fail(self, assignment: dict[str, Any], reason: str, error: str) -> None:
        await self._under(assignment, "fail", reason=reason, error=error)

    async def _under(self, assignment: dict[str, Any], verb: str, **body: Any) -> None:
        path = _here(f"/api/tasks/{assignment['task']['id']}/{verb}")
        await self.api.post(path, {"token": assignment["token"], **body})


def _here(path: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}workspace={WORKSPACE}"


@asynccontextmanager
async def served(store_url: str, patch: pytest.MonkeyPatch) -> AsyncIterator[Coscientist]:
    """A server whose clock stands until it is moved."""
    patch.setattr("shiftwork.server.house.time", SimpleNamespace(time=lambda: STANDS_AT))
    async with running(store_url, profile="coscientist") as api:
        yield Coscientist(api)
