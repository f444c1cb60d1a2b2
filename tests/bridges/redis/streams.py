"""A worker and its orchestrator, written with only the protocol and a Redis client."""

from __future__ import annotations

import json
from typing import Any

from shiftwork import Queue, views
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext, connect
from shiftwork.compat.bridges.redis.foreign_orchestrator import ForeignGroup
from shiftwork.compat.bridges.redis.orchestrator import Options, Orchestrator
from shiftwork.compat.external.model import Bridge

TASK, RESULT, DLQ, GROUP = "stream:task", "stream:result", "stream:dlq", "cg:workers"
Entry = tuple[str, dict[str, str]]
Client = Any
"""Of redis-py, as every worker has it; its types leave open whether an answer is text."""


class HandWorker:
    """Reads `stream:task` as one consumer of the group, writes `stream:result`, and acknowledges."""

    def __init__(self, redis: Client, name: str) -> None:
        self.redis = redis
        self.name = name

    async def read(self, count: int = 1) -> list[Entry]:
        answer = await self.redis.xreadgroup(GROUP, self.name, {TASK: ">"}, count=count)
        streams = dict(answer) if answer else {}
        entries = streams.get(TASK, [])
        if entries and isinstance(entries[0], list):
            entries = entries[0]
        return [(message_id, fields) for message_id, fields in entries]

    async def read_one(self) -> Entry:
        (entry,) = await self.read()
        return entry

    async def say(self, entry: Entry, status: str, **fields: Any) -> str:
        stated = {"task_id": entry[1]["task_id"], "status": status, "worker": self.name, **fields}
        written: str = await self.redis.xadd(RESULT, stated)
        return written

    async def succeed(self, entry: Entry, result: Any = None) -> None:
        """Done: the result, then the acknowledgement."""
        await self.say(entry, "succeeded", result=json.dumps(result))
        await self.acknowledge(entry)

    async def fail(self, entry: Entry, error: str, **fields: Any) -> None:
        await self.say(entry, "failed", error=error, **fields)
        await self.acknowledge(entry)

    async def acknowledge(self, entry: Entry) -> None:
        await self.redis.xack(TASK, GROUP, entry[0])

    async def idle_for(self, entry: Entry, seconds: float) -> None:
        """Make an entry look as if its worker had been silent for this long."""
        await self.redis.xclaim(TASK, GROUP, self.name, 0, [entry[0]], idle=int(seconds * 1000), justid=True)


def orchestrator(queue: Queue, url: str, name: str = "redis", **options: Any) -> Orchestrator:
    """A bridge that scans on request."""
    bridge = Bridge(queue.workspace, name, GROUP, options.pop("types", None))
    return Orchestrator(BridgeContext(queue, connect(url), bridge, options.pop("prefix", "")), Options(**options))


async def pending(redis: Client) -> int:
    found: dict[str, Any] = await redis.xpending(TASK, GROUP)
    return int(found["pending"])


async def entries(redis: Client, stream: str) -> list[dict[str, str]]:
    return [fields for _, fields in await redis.xrange(stream)]


async def submit(queue: Queue, key: str = "order-1", **fields: Any) -> str:
    """A task as the protocol wants it; its id."""
    given = {"type": "tool", "tool_name": "send_mail", "payload": {"to": "ada"}, "idempotency_key": key, **fields}
    return (await queue.submit(given)).id


async def given(queue: Queue, bridge: Orchestrator, worker: HandWorker, key: str = "order-1") -> tuple[str, Entry]:
    """A new task that the worker has just read."""
    task_id = await submit(queue, key)
    await bridge.run_once()
    return task_id, await worker.read_one()


async def taken(queue: Queue, bridge: Orchestrator, worker: HandWorker, key: str = "order-1") -> tuple[str, Entry]:
    """A task that the worker has read, after the bridge has seen it."""
    task_id, entry = await given(queue, bridge, worker, key)
    await bridge.run_once()
    return task_id, entry


async def given_up(queue: Queue, bridge: Orchestrator, worker: HandWorker) -> str:
    """Fail a task without retry; return its id."""
    task_id, entry = await given(queue, bridge, worker)
    await worker.fail(entry, "no such customer", retryable="false")
    await bridge.run_once()
    return task_id


async def emitted(queue: Queue, task_id: str) -> list[str]:
    """The protocol's events about a task, in order."""
    known = views.get("redis").events
    return [
        known[name] for event in (await queue.tasks.history(task_id)).events for name in event.names if name in known
    ]


def foreign(queue: Queue, url: str, **options: Any) -> ForeignGroup:
    """Our workers' side, which scans on request."""
    return ForeignGroup(
        BridgeContext(queue, connect(url), Bridge(queue.workspace, "redis", GROUP), "", "worker"), **options
    )
