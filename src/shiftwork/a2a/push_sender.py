"""Sends A2A push notifications: the whole task, whenever it has changed since the last one.

Each config records which version of its task was sent. A server takes a due config by postponing its next attempt; if
the server dies, another sends it again. So a client receives the last state at least once, even across restarts; states
that follow each other quickly may be merged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec
from a2a.types import StreamResponse
from google.protobuf.json_format import MessageToDict

from shiftwork.a2a import a2a_tasks, push_configs
from shiftwork.model import ids
from shiftwork.model.errors import NotFound, ShiftworkError
from shiftwork.notifications import dial
from shiftwork.queue import Queue
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

log = logging.getLogger("shiftwork.a2a")
TICK_SEC = 0.5
AT_ONCE = 32
TIMEOUT_SEC = 10.0
LEASE_SEC = 30.0
FIRST_WAIT_SEC = 2.0
MAX_WAIT_SEC = 600.0
MAX_ATTEMPTS = 20
"""Consecutive failures; with these delays, slightly more than two hours."""
KEEP_SEC = 7 * 86_400.0
CLEAN_SEC = 600.0


class PushSender:
    """Sends for all workspaces; several can run on one database."""

    def __init__(self, queue: Queue, *, allow_private: bool) -> None:
        self._queue = queue
        self._store = queue.engine.store
        self._allow_private = allow_private
        self._session: aiohttp.ClientSession | None = None
        self._cleaned_at = 0.0

    async def run_forever(self) -> None:
        try:
            while True:
                try:
                    sent = await self.send_due()
                except ShiftworkError as error:
                    log.warning("push notifications postponed: %s", error)
                    sent = 0
                if not sent:
                    await asyncio.sleep(TICK_SEC)
        finally:
            await self.close()

    async def send_due(self) -> int:
        """Send what is due; returns the number of attempts."""
        now = self._store.now()
        if now - self._cleaned_at > CLEAN_SEC:
            self._cleaned_at = now
            await crash_points.named(
                "a2a push", self._store.run(lambda tx: tx.run("delete_ended_push_configs", before=now - KEEP_SEC))
            )
        due = await self._store.read(lambda tx: tx.all("due_push_configs", now=now, count=AT_ONCE))
        await asyncio.gather(*[self._notify(row) for row in due])
        return len(due)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _notify(self, row: Row) -> None:
        now = self._store.now()
        known = {name: row[name] for name in ("workspace", "task_id", "id")}

        async def take(tx: Tx) -> Any:
            return await tx.one("take_push_config", **known, until=now + LEASE_SEC, now=now)

        taken = await crash_points.named("a2a push", self._store.run(take))
        if taken is None:
            return  # another server has it
        queue = self._queue.in_workspace(row["workspace"])
        task_id = ids.show_task(row["task_id"])
        try:
            found = await a2a_tasks.find(queue, task_id)
        except NotFound:
            return
        problem = await self._post(row, a2a_tasks.shown(found, task_id))
        ended = a2a_tasks.state_of(found) in a2a_tasks.ENDED if problem is None else taken["attempts"] >= MAX_ATTEMPTS
        wait = 0.0 if problem is None else min(FIRST_WAIT_SEC * 2 ** (taken["attempts"] - 1), MAX_WAIT_SEC)
        if problem is not None:
            log.warning("push notification of %s failed: %s", task_id, problem)
        at = self._store.now()
        recorded = {
            # The version of the first task: a rerun is another row, whose changes are found by polling.
            "version": row["version"] if problem is None else row["sent_version"],
            "attempts": 0 if problem is None else taken["attempts"],
            "next_at": at + wait,
            "ended_at": at if ended else None,
            "error": problem,
        }
        await crash_points.named("a2a push", self._store.run(lambda tx: tx.run("record_push", **known, **recorded)))

    async def _post(self, row: Row, task: Any) -> str | None:
        """Send the task; returns why it failed, or None."""
        body = msgspec.json.encode(MessageToDict(StreamResponse(task=task)))
        headers = {"content-type": "application/a2a+json", "user-agent": "shiftwork"}
        try:
            headers |= push_configs.opened(self._queue.engine, row).headers()
            async with self._opened_session().post(
                row["url"], data=body, headers=headers, allow_redirects=False
            ) as answer:
                return None if 200 <= answer.status < 300 else f"it answered {answer.status}"
        except TimeoutError:
            return f"it did not answer within {TIMEOUT_SEC:g} s"
        except ShiftworkError as error:
            return error.what
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"it could not be reached ({type(error).__name__})"  # the text may contain a secret

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                force_close=True,
                use_dns_cache=False,
                limit=0,
                socket_factory=None if self._allow_private else dial.open_public,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SEC),
                trust_env=False,  # a proxy would connect to addresses that we refuse
            )
        return self._session
