"""The calls of the factory's document as its agents and its people make them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.running import Running, running

STANDS_AT = 1_700_000_000.0
"""In the past, as every database's own clock sees it."""
CODER = "agent_coder_01"
OTHER = "agent_coder_02"
ABLE = ["code-execution", "git", "testing", "typescript", "python"]
EXACT = {"jitter": False}
Task = dict[str, Any]


def at(seconds: float) -> str:
    """Return a time of the test clock as answers write it."""
    return datetime.fromtimestamp(STANDS_AT + seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def ids(tasks: Iterable[Task]) -> list[str]:
    return [task["id"] for task in tasks]


class Factory:
    """One server in the document's profile; its calls use the document's names and the claim's token."""

    def __init__(self, api: Running) -> None:
        self.api = api

    async def ask(self, call: str, body: Any = None) -> Any:
        """Return the answer to a call such as "POST /api/tasks", which must succeed."""
        method, path = call.split(" ")
        reply = await self.api.call(method, path, body)
        assert reply.status in {200, 201}, reply
        return reply.json

    async def refused(self, call: str, body: Any) -> Any:
        """Return the error of a call that must fail."""
        method, path = call.split(" ")
        reply = await self.api.call(method, path, body)
        assert 400 <= reply.status < 500, reply
        return reply.json

    async def pass_time(self, seconds: float) -> None:
        await self.api.pass_time(seconds)

    async def set_up(self, **settings: Any) -> None:
        """Settings in force from now on."""
        reply = await self.api.call("PATCH", "/api/settings", {"set": settings})
        assert reply.status == 200, reply

    async def create(self, **fields: Any) -> Task:
        task: Task = await self.ask("POST /api/tasks", {"type": "code", **fields})
        return task

    async def create_dag(self, *tasks: Task, **fields: Any) -> dict[str, Task]:
        """A DAG as one call; its tasks by the keys they were given."""
        made = await self.ask("POST /api/dags", {"tasks": [{"type": "code", **task} for task in tasks], **fields})
        return {given["key"]: task for given, task in zip(tasks, made["tasks"], strict=True)}

    async def get(self, task: Task) -> Task:
        found: Task = await self.ask(f"GET /api/tasks/{task['id']}")
        return found

    async def status(self, task: Task) -> str:
        return str((await self.get(task))["status"])

    async def dag(self, task: Task) -> dict[str, Any]:
        """The DAG that a task belongs to."""
        found: dict[str, Any] = await self.ask(f"GET /api/dags/{task['dag_id']}")
        return found

    async def walked(self, task: Task) -> list[str]:
        """The states of a task in order, CREATED first."""
        steps = (await self.ask(f"GET /api/tasks/{task['id']}/history"))["transitions"]
        return [steps[0]["from"], *(step["to"] for step in steps)]

    async def events(self, filters: str = "") -> list[tuple[str, str | None]]:
        """Return the events with their tasks."""
        page = await self.ask(f"GET /api/events?limit=1000{filters}")
        return [(event["event"], event["task_id"]) for event in page["events"]]

    async def letters(self, *, reviewed_too: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            await self.ask(f"GET /api/dead-letters?reviewed_too={str(reviewed_too).lower()}")
        )["dead_letters"]
        return found

    async def register(self, name: str = CODER, **fields: Any) -> dict[str, Any]:
        agent: dict[str, Any] = await self.ask("POST /api/agents", {"id": name, "capabilities": ABLE, **fields})
        return agent

    async def agent(self, name: str = CODER) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(f"GET /api/agents/{name}")
        return found

    async def claim(self, agent: str = CODER, **fields: Any) -> Any:
        """The task this agent gets, or None, as for an agent that takes no work."""
        reply = await self.api.call("POST", "/api/tasks/claim", {"agent_id": agent, **fields})
        if reply.status != 200:
            assert reply.code == "agent_unavailable"
            return None
        return reply.json["task"]

    async def report(self, task: Task, verb: str, **body: Any) -> Any:
        """Send an agent's report about its task: start, heartbeat, complete, fail, spawn."""
        return await self.ask(f"POST /api/tasks/{task['id']}/{verb}", {"token": task["token"], **body})

    async def running(self, agent: str = CODER, **fields: Any) -> Task:
        """A new task that the agent executes."""
        made = await self.create(**fields)
        return await self.started(agent, made)

    async def started(self, agent: str, task: Task) -> Task:
        """Start the task, which must be the next for this agent."""
        claimed: Task = await self.claim(agent)
        assert claimed["id"] == task["id"]
        await self.report(claimed, "start")
        return claimed

    async def finish(self, agent: str = CODER, **stated: Any) -> Task:
        """Complete the next task of this agent."""
        claimed: Task = await self.claim(agent)
        await self.report(claimed, "start")
        done: Task = await self.report(claimed, "complete", **stated)
        return done


@asynccontextmanager
async def served(store_url: str, patch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Factory]:
    """Run a server whose clock only the test moves."""
    patch.setattr("shiftwork.server.state.time", SimpleNamespace(time=lambda: STANDS_AT))
    async with running(store_url, profile="factory", **options) as api:
        factory = Factory(api)
        await api.call("PATCH", "/api/settings", {"profile": "factory"})  # where the workspace was there before
        yield factory
