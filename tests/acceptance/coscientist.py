"""The calls of the co-scientist's document as its Supervisor and its workers make them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.running import Reply, Running, running

STANDS_AT = 1_790_000_000.0
PAGE = 1000


def at(seconds: float) -> str:
    """Return a time of the test clock as answers write it."""
    return datetime.fromtimestamp(STANDS_AT + seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Coscientist:
    """One queue of the document, with its settings and in its names."""

    def __init__(self, api: Running, workspace: str = "lab") -> None:
        self.api = api
        self.workspace = workspace
        self._numbers = itertools.count()

    async def call(self, call: str, body: Any = None) -> Reply:
        """A call written as "POST /api/tasks", in the document's names, which are the server's own default."""
        method, path = call.split(" ")
        return await self.api.call(method, self._here(path), body)

    async def ask(self, call: str, body: Any = None) -> Any:
        """Return the answer to a call that must succeed."""
        reply = await self.call(call, body)
        assert reply.status in {200, 201, 204}, reply
        return reply.json if reply.body else None

    async def read(self, path: str) -> Any:
        """Read facts that the document does not define."""
        return await self.api.get(self._here(path))

    async def pass_time(self, seconds: float) -> None:
        await self.api.pass_time(seconds)

    def _here(self, path: str) -> str:
        return f"{path}{'&' if '?' in path else '?'}workspace={self.workspace}"

    def task(self, priority: str, **fields: Any) -> dict[str, Any]:
        """A task that is not a duplicate of another: its payload is its own."""
        return {"agent_type": "Ranking", "priority": priority, "payload": {"n": next(self._numbers)}, **fields}

    async def submit(self, priority: str = "Medium", **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = await self.ask("POST /api/tasks", self.task(priority, **fields))
        return made

    async def refused(self, priority: str, **fields: Any) -> Reply:
        reply = await self.call("POST /api/tasks", self.task(priority, **fields))
        assert reply.status >= 400, reply
        return reply

    async def fill(self, priority: str, count: int, **fields: Any) -> list[str]:
        """Many tasks of one level, a batch at a time."""
        made: list[str] = []
        for left in range(count, 0, -PAGE):
            batch = [self.task(priority, **fields) for _ in range(min(PAGE, left))]
            made += [task["id"] for task in await self.ask("POST /api/tasks", batch)]
        return made

    async def query(self) -> dict[str, Any]:
        """The command Query: QueueStatus."""
        found: dict[str, Any] = await self.ask("GET /api/queue?fresh=true")
        return found

    async def get(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/tasks/{task['id']}")
        return found

    async def status(self, task: dict[str, Any]) -> str:
        return str((await self.get(task))["status"])

    async def history(self, task: dict[str, Any]) -> list[str]:
        """A task's transitions as the document draws them."""
        steps = (await self.ask(f"GET /api/tasks/{task['id']}/history"))["transitions"]
        return [f"{step['from']} → {step['to']}" for step in steps]

    async def result(self, task: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/tasks/{task['id']}/result")
        return found

    async def dead_letters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("GET /api/dead-letters"))["dead_letters"]
        return found

    async def configure(self, **settings: Any) -> None:
        await self._set("/api/settings", settings)

    async def configure_type(self, agent_type: str, settings: dict[str, Any]) -> None:
        await self._set(f"/api/settings?type={agent_type}", settings)

    async def _set(self, path: str, settings: dict[str, Any]) -> None:
        reply = await self.api.call("PATCH", self._here(path), {"set": settings})
        assert reply.status == 200, reply

    async def settings(self) -> dict[str, Any]:
        """QueueConfig as it is in force."""
        return {each["key"]: each["value"] for each in (await self.read("/api/settings"))["settings"]}

    async def alerts(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.read(f"/api/alerts?open_only=true&kind={kind}"))["alerts"]
        return found

    async def told(self, *names: str) -> list[str]:
        """Return the Supervisor's notifications of these kinds, in order."""
        return [event["event"] for event in await self.events() if event["event"] in names]

    async def events(self) -> list[dict[str, Any]]:
        events, after = [], 0
        while (page := await self.read(f"/api/events?after={after}&limit=1000"))["events"]:
            events += page["events"]
            after = page["next"]
        return events

    async def register(self, worker: str, **fields: Any) -> dict[str, Any]:
        registered: dict[str, Any] = await self.ask("POST /api/agents", {"worker_id": worker, **fields})
        return registered

    async def workers(self) -> dict[str, str]:
        """Return the worker list with the status of each."""
        listed = (await self.ask("GET /api/agents"))["agents"]
        return {worker["worker_id"]: worker["status"] for worker in listed}

    async def request(self, worker: str, **options: Any) -> Any:
        """The command Request: an Assignment or None."""
        return (await self.ask("POST /api/tasks/claim", {"worker_id": worker, **options}))["assignment"]

    async def take(self, worker: str, **options: Any) -> Any:
        """A Request whose Assignment is acknowledged at once, or None."""
        assignment = await self.request(worker, **options)
        if assignment is not None:
            await self.acknowledge(assignment)
        return assignment

    async def took(self, worker: str, **options: Any) -> Any:
        """The id of the task that a worker is given and begins."""
        assignment = await self.take(worker, **options)
        return assignment and assignment["task"]["id"]

    async def acknowledge(self, assignment: dict[str, Any]) -> dict[str, Any]:
        return await self.report(assignment, "start")

    async def heartbeat(self, assignment: dict[str, Any]) -> None:
        await self.report(assignment, "heartbeat")

    async def complete(self, assignment: dict[str, Any], result: Any = None) -> dict[str, Any]:
        return await self.report(assignment, "complete", result=result)

    async def fail(self, assignment: dict[str, Any], reason: str, error: str) -> dict[str, Any]:
        return await self.report(assignment, "fail", reason=reason, error=error)

    async def report(self, assignment: dict[str, Any], verb: str, **body: Any) -> dict[str, Any]:
        """Send a worker's report under its assignment."""
        stated = {"assignment_id": assignment["assignment_id"], **body}
        after: dict[str, Any] = await self.ask(f"POST /api/tasks/{assignment['task']['id']}/{verb}", stated)
        return after


@asynccontextmanager
async def served(store_url: str, patch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Coscientist]:
    """Run a server whose clock only the test moves."""
    patch.setattr("shiftwork.server.state.time", SimpleNamespace(time=lambda: STANDS_AT))
    async with running(store_url, profile="coscientist", **options) as api:
        yield Coscientist(api)
