"""The context shared by all parts of a bridge: the queue on one side, Redis on the other."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from shiftwork.compat.bridges.redis.fields import GROUP, READERS, Streams
from shiftwork.compat.bridges.redis.stream_state import NOTHING, MessageId, StreamState, after, parse
from shiftwork.compat.external.model import Bridge
from shiftwork.engine.engine import Caller
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.errors import InputError
from shiftwork.queue import Queue
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

T = TypeVar("T")
Client = Any
"""A client of redis-py, whose types do not say that our replies are text."""

Role = Literal["orchestrator", "worker"]
Entry = tuple[str, dict[str, str]]
"""A message id and its fields."""

PAGE = 1000
ANSWER_SEC = 5
"""A timeout longer than any blocking read: without a reply by then, the connection is dead."""


def connect(url: str) -> Client:
    """A client that decodes all bytes as text; it connects on first use."""
    try:
        from redis.asyncio import Redis  # noqa: PLC0415  # an optional extra
    except ImportError as error:
        raise InputError(
            f"the bridge needs {error.name}, which is not installed", hint="pip install 'shiftwork[redis]'"
        ) from None
    try:
        return Redis.from_url(
            url,
            decode_responses=True,
            encoding_errors="replace",
            socket_timeout=ANSWER_SEC,
            socket_connect_timeout=ANSWER_SEC,
            health_check_interval=30,
        )
    except ValueError as error:
        raise InputError(f"not a Redis server's address: {error}", where="--redis-url") from None


class BridgeContext:
    """One bridge between one workspace and the streams under one prefix."""

    def __init__(
        self, queue: Queue, redis: Client, bridge: Bridge, prefix: str = "", role: Role = "orchestrator"
    ) -> None:
        self.queue = queue
        self.redis = redis
        self.bridge = bridge
        self.streams = Streams.under(prefix)
        self.role: Role = role
        self.us = f"shiftwork:{role}:{bridge.name}"
        """The consumer name of all bridges of this name: one continues with the entries of another."""
        self._caller = Caller(f"bridge:{bridge.name}", workspace=bridge.workspace)

    async def run(self, verb: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a verb for this bridge in one transaction."""
        engine = self.queue.engine
        return await crash_points.named(
            "redis bridge", engine.store.run(lambda tx: verb(tx, engine, self._caller, self.bridge, *args))
        )

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Row]:
        """Read rows of this bridge from the store."""
        names = {"workspace": self.bridge.workspace, **parameters}
        return await self.queue.engine.store.read(lambda tx: tx.all(statement, **names))

    async def execute(self, statement: str, **parameters: Any) -> None:
        """Run one statement in its own transaction."""
        await crash_points.named(
            "redis bridge", self.queue.engine.store.run(functools.partial(_record, statement, parameters))
        )

    async def touch_bridge(self) -> None:
        """Record that this bridge is alive."""
        names = {"workspace": self.bridge.workspace, "name": self.bridge.name}
        await self.execute("touch_bridge", **names, role=self.role, now=self.queue.now())

    async def call(self, script: str, keys: Sequence[str], *args: Any) -> Any:
        return await self.redis.eval(script, len(keys), *keys, *args)

    async def make_groups(self, *pairs: tuple[str, str]) -> None:
        """Create the streams and their groups, also after Redis has lost them."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  # see connect

        for stream, group in pairs or self.own_groups:
            try:
                await self.redis.xgroup_create(stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    @property
    def own_groups(self) -> tuple[tuple[str, str], ...]:
        streams = self.streams
        return (streams.task, GROUP), (streams.result, READERS), (streams.dlq, READERS)

    async def read(
        self, streams: Mapping[str, str], group: str, *, count: int = PAGE, wait_ms: int | None = None
    ) -> dict[str, list[Entry]]:
        """Read new entries (`>`), or our unacknowledged ones (`0`), by stream."""
        answer = await self.redis.xreadgroup(group, self.us, dict(streams), count=count, block=wait_ms)
        found: dict[str, list[Entry]] = {}
        for stream, entries in answer.items() if isinstance(answer, dict) else answer or ():
            listed = entries[0] if entries and isinstance(entries[0], list) else entries
            found[stream] = [(message_id, fields or {}) for message_id, fields in listed]
        return found

    async def stream_state(self) -> StreamState:
        """All pending entries with their consumers, and the last delivered entry."""
        pending: dict[str, str] = {}
        first = "-"
        while True:
            page = await self.redis.xpending_range(self.streams.task, GROUP, first, "+", PAGE)
            pending.update((each["message_id"], _agent(each["consumer"])) for each in page)
            if len(page) < PAGE:
                break
            first = after(page[-1]["message_id"])
        return StreamState(pending, await self._last())

    async def _last(self) -> MessageId:
        for group in await self.redis.xinfo_groups(self.streams.task):
            if group["name"] == GROUP:
                return parse(group["last-delivered-id"])
        return NOTHING


def _agent(consumer: str) -> str:
    """The consumer's name, without characters that a database cannot store."""
    return consumer.replace("\0", "\ufffd")[:MAX_NAME]


async def _record(statement: str, parameters: Mapping[str, Any], tx: Tx) -> None:
    await tx.run(statement, **parameters)
