"""Our workers for a foreign orchestrator: its entries become tasks here, and their results are sent back.

The orchestrator decides about retries: a task from its stream is tried once, and its failure is reported back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from shiftwork.compat.bridges.redis import lua_scripts
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext, Entry
from shiftwork.compat.bridges.redis.fields import (
    GROUP,
    Malformed,
    Order,
    Result,
    letter_out,
    result_out,
    task_in,
    task_out,
)
from shiftwork.compat.bridges.redis.redis_results import refuse
from shiftwork.model import ids
from shiftwork.model.errors import ConflictError, DuplicateTask, InputError, NotFound, QueueFull
from shiftwork.model.states import SETTLED, State
from shiftwork.model.task import Submitted, Task
from shiftwork.store import crash_points
from shiftwork.store.store import Row

log = logging.getLogger("shiftwork.compat.bridges")
PAGE = 100
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""A valid W3C traceparent; other forms are ignored."""


class ForeignGroup:
    """One consumer of a foreign group, which stands for all workers of this queue."""

    def __init__(self, context: BridgeContext, *, ahead: int = 100, max_retries: int = 3) -> None:
        self.context = context
        self._ahead = ahead
        self._max_retries = max_retries
        self._full = False
        """Whether the queue is full: no more entries are read, so that other consumers can take them."""
        self._queue = context.queue.in_workspace(context.bridge.workspace).as_caller(f"bridge:{context.bridge.name}")

    async def run_once(self, *, thorough: bool = True, wait_ms: int | None = None) -> int:
        """Run one pass over both sides; returns the number of changes. A thorough one also resumes pending entries."""
        context, done = self.context, 0
        if thorough:
            await context.touch_bridge()
            await context.make_groups((context.streams.task, GROUP))
            await self._keep()
            done += await self._resume()
        room = self._ahead - len(await context.rows("list_taken_in", bridge=context.bridge.name))
        if room > 0 and not self._full:
            done += await self._take_in_all(await self._entries(">", min(room, PAGE), wait_ms))
        elif wait_ms:
            await asyncio.sleep(wait_ms / 1000)  # the time that a read would have waited
        return done + await self._answer()

    async def _entries(self, start: str, count: int = PAGE, wait_ms: int | None = None) -> list[Entry]:
        found = await self.context.read({self.context.streams.task: start}, GROUP, count=count, wait_ms=wait_ms)
        return found.get(self.context.streams.task, [])

    async def _keep(self) -> None:
        """Reset the idle time of entries whose tasks are still open here."""
        rows = await self.context.rows("list_taken_in", bridge=self.context.bridge.name)
        mine = {row["message_id"] for row in await self._pending()} & {row["message_id"] for row in rows}
        if mine:
            await self.context.redis.xclaim(
                self.context.streams.task, GROUP, self.context.us, 0, sorted(mine), justid=True
            )

    async def _pending(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.context.redis.xpending_range(
            self.context.streams.task, GROUP, "-", "+", self._ahead + PAGE, consumername=self.context.us
        )
        return found

    async def _resume(self) -> int:
        """Submit entries that were read before and are not tasks yet."""
        self._full, start, done = False, "0", 0
        while not self._full and (entries := await self._entries(start)):
            done += await self._take_in_all(entries)
            start = entries[-1][0]
        return done

    async def _take_in_all(self, entries: Sequence[Entry]) -> int:
        """Entries that the queue refuses for now stay pending, and the next thorough pass tries them again."""
        done = 0
        for entry in entries:
            try:
                done += await self._take_in(entry)
            except ConflictError as error:
                log.warning("entry %s will be retried: %s", entry[0], error)
                if isinstance(error, QueueFull):
                    self._full = True
                    break
        return done

    async def _take_in(self, entry: Entry) -> int:
        """Submit an entry as a task; an invalid one becomes a dead letter."""
        context, (message_id, fields) = self.context, entry
        known = {row["message_id"] for row in await context.rows("list_taken_in", bridge=context.bridge.name)}
        if message_id in known or not fields:
            return 0
        try:
            order = task_in(fields)
            task_id = await self._submit(order)
        except (Malformed, InputError) as error:
            await refuse(context, context.streams.task, entry, str(error))
            return 1
        kept = msgspec.json.encode(task_out(order)).decode()
        made = (context.bridge.workspace, context.bridge.name, message_id, ids.parse(task_id), kept)
        await crash_points.named(
            "redis bridge", context.queue.engine.store.run(lambda tx: tx.insert("insert_taken_in", [made]))
        )
        return 1

    async def _submit(self, order: Order) -> str:
        """Submit a task. The same key is the same task: a failed one is retried, a completed one is not."""
        try:
            made: Submitted = await self._queue.submit(
                type=order.type,
                tool_name=order.tool_name,
                payload=order.payload,
                idempotency_key=order.idempotency_key,
                max_attempts=1,
                created_by=f"bridge:{self.context.bridge.name}",
                traceparent=order.trace if order.trace and TRACEPARENT.fullmatch(order.trace) else None,
            )
        except DuplicateTask as error:  # the settings refuse duplicates, but here one is no error
            made = await self._known(error.facts["task_id"])
        if made.duplicate and made.status in SETTLED:
            await self._queue.dead_letters.review(made.id, "retry", note=f"sent again, retry_count {order.retry_count}")
        return made.id

    async def _known(self, task_id: str) -> Submitted:
        try:
            return Submitted(task_id, (await self._queue.get(task_id)).status, duplicate=True)
        except NotFound:
            return Submitted(task_id, State.COMPLETED, duplicate=True)  # ended and purged since

    async def _answer(self) -> int:
        rows = await self.context.rows("answerable", bridge=self.context.bridge.name, count=PAGE)
        for row in rows:
            await self._answer_one(row)
        return len(rows)

    async def _answer_one(self, row: Row) -> None:
        context, order = self.context, task_in(msgspec.json.decode(row["entry"]))
        stream, fields = await self._reply(order, ids.show_task(row["task_id"]))
        parts = [part for field in fields.items() for part in field]
        keys = [context.streams.task, stream]
        if not await context.call(lua_scripts.ANSWER, keys, GROUP, row["message_id"], context.us, *parts):
            log.info("entry %s belongs to another consumer now: dropping its result", row["message_id"])
        names = {"workspace": context.bridge.workspace, "bridge": context.bridge.name}
        await context.execute("forget_taken_in", **names, items=[(row["message_id"],)])

    async def _reply(self, order: Order, task_id: str) -> tuple[str, dict[str, str]]:
        """The stream and the fields of the answer."""
        streams, us = self.context.streams, self.context.us
        try:
            task = await self._queue.get(task_id)
        except NotFound:
            return streams.result, result_out(Result(order.task_id, us, succeeded=False, error="deleted", retry=False))
        if task.status == State.COMPLETED:
            data = None if task.result is None else task.result.output
            return streams.result, result_out(Result(order.task_id, us, succeeded=True, data=data))
        error, retries = task.last_error or task.failure_reason or task.status, order.retry_count + 1
        if task.status != State.CANCELLED and (retries > self._max_retries or self._is_final(task)):
            body = {"tool_name": order.tool_name, "payload": order.payload}
            letter = letter_out(order.task_id, body, error, retries, self.context.queue.now())
            return streams.dlq, letter | {"worker": us}
        again = task.status != State.CANCELLED
        return streams.result, result_out(Result(order.task_id, us, succeeded=False, error=error, retry=again))

    def _is_final(self, task: Task) -> bool:
        """Whether a retry is useless because the input is invalid."""
        return task.failure_reason == "invalid_input"
