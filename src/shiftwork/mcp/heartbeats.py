"""Sends heartbeats for agents that cannot while they think.

The server sends heartbeats for claims made through it, until the agent ends the claim, its session ends, or it has not
named the claim for `keep_sec`. Then the lease expires, unless the agent names the claim again before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from shiftwork.model.errors import Forbidden, ShiftworkError, Unauthorized
from shiftwork.model.reports import Heartbeat

if TYPE_CHECKING:
    from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.local import check_allowed

log = logging.getLogger("shiftwork.mcp")
TICK_SEC = 0.5


class Key(NamedTuple):
    """A claim and its caller: no caller can end the heartbeats of another's claim."""

    token: str
    holder: str | None = None


class _KeptClaim:
    """One claim that is kept alive."""

    __slots__ = ("agent_id", "beaten_at", "interval_sec", "named_at", "queue", "session")

    def __init__(self, queue: AnyQueue, agent_id: str, session: str | None, interval_sec: float) -> None:
        self.queue = queue
        self.agent_id = agent_id
        self.session = session
        self.interval_sec = interval_sec
        self.named_at = self.beaten_at = queue.now()


class HeartbeatKeeper:
    """All claims for which this server sends heartbeats."""

    def __init__(self, keep_sec: float) -> None:
        self.keep_sec = keep_sec
        self._kept: dict[Key, _KeptClaim] = {}

    def add(self, key: Key, queue: AnyQueue, agent_id: str, session: str | None, interval_sec: float) -> None:
        """Send heartbeats for this claim from now on."""
        self._kept[key] = _KeptClaim(queue, agent_id, session, interval_sec)

    def touch(self, key: Key, session: str | None) -> bool:
        """Record that the agent named this claim; false if no heartbeats are sent for it."""
        kept = self._kept.get(key)
        if kept is None:
            return False
        kept.named_at, kept.session = kept.queue.now(), session
        return True

    def drop(self, key: Key) -> None:
        self._kept.pop(key, None)

    def end(self, session: str) -> None:
        """Stop the heartbeats of a session that has ended."""
        for key in [key for key, kept in self._kept.items() if kept.session == session]:
            self.drop(key)

    def held_by(self, agent_id: str, owner: str | None) -> list[str]:
        return [key.token for key, kept in self._kept.items() if (kept.agent_id, key.holder) == (agent_id, owner)]

    async def beat_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_SEC)
            await self.beat()

    async def beat(self) -> None:
        """Drop claims not named for too long, and send due heartbeats."""
        due: defaultdict[AnyQueue, list[Key]] = defaultdict(list)
        for key, kept in [*self._kept.items()]:
            now = kept.queue.now()
            if now - kept.named_at > self.keep_sec:
                log.warning("claim %s was not used for %g s and is left to its lease", key.token, self.keep_sec)
                self.drop(key)
            elif now - kept.beaten_at >= kept.interval_sec:
                due[kept.queue].append(key)
        for queue, keys in due.items():
            await self._beat(queue, keys)

    async def _beat(self, queue: AnyQueue, keys: list[Key]) -> None:
        sent = queue.now()
        try:
            await check_allowed(queue)
            answers = await queue.batch.heartbeat([Heartbeat(key.token) for key in keys])
        except (Unauthorized, Forbidden) as error:
            log.warning("%d claims are left to their leases: %s", len(keys), error)
            for key in keys:
                self.drop(key)
            return
        except ShiftworkError as error:
            log.warning("a heartbeat failed: %s", error)
            return
        for key, answer in zip(keys, answers, strict=True):
            if answer.action in {"cancel", "lost"}:
                self.drop(key)  # its agent learns of it with its next call
            elif (kept := self._kept.get(key)) is not None:
                kept.beaten_at = sent
