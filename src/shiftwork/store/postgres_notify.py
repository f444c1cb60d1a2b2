"""Notifies other processes of a fleet of new work and ended tasks with NOTIFY, and receives theirs with LISTEN.

If possible, a notice is sent with its statement or commit, otherwise on a separate connection. Losing one only delays
work until the next poll.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from shiftwork.store import postgres_sessions
from shiftwork.store.postgres_connect import open_connection
from shiftwork.store.postgres_errors import LOST
from shiftwork.store.postgres_schema import channels
from shiftwork.store.postgres_sessions import note_loss, until_lost
from shiftwork.store.postgres_tx import PostgresTx
from shiftwork.store.stalls import passed
from shiftwork.store.wakes import LocalWakes

Item = TypeVar("Item", int, str)
log = logging.getLogger("shiftwork.store")

NOTIFY_EVERY_SEC = 0.005
"""A lane is announced to other processes at most this often: a storm of submits is not a storm of wake-ups."""

IDLE_SEC = 0.02
"""After this long without a notice, the next one is sent in the same statement as its work and arrives half a
millisecond sooner. Not always: commits with a notice wait for each other, in all processes of a fleet."""

NOTICE_TRIES = 3
"""Attempts to send a notice over connections that turn out to be broken."""

LISTEN_AGAIN_SEC = 0.25
LISTEN_AGAIN_MAX_SEC = 2.0
"""Delay before the first attempt to reconnect the listener, and the maximum delay between later ones."""

LAST_NOTICE_SEC = 1.0
MAX_NOTIFIED = 200
"""Lanes in one payload, which holds 8,000 bytes at most."""


class Notices:
    """The notices of one process."""

    def __init__(
        self,
        schema: str,
        direct_dsn: str | None,
        session: dict[str, str],
        pooled: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        self.ready_channel, self._ends_channel = channels(schema)
        self._direct_dsn = direct_dsn
        """Where to listen; None behind a pooler, where sessions do not last."""
        self._session = session
        self._pooled = pooled
        self._wakes: LocalWakes[int] = LocalWakes()
        self._ends: LocalWakes[str] = LocalWakes()
        self._instance = secrets.token_hex(4)
        """Marks the notices of this process, which it ignores."""
        self._to_notify: set[int] = set()
        self._ends_to_notify: set[str] = set()
        self._notifier: asyncio.Task[None] | None = None
        self._noticed_at = 0.0
        self._connection: Any = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    async def send_last(self) -> None:
        """A program that submits and exits has not notified others yet."""
        self._closed = True
        if self._notifier is not None:
            await asyncio.wait([self._notifier], timeout=LAST_NOTICE_SEC)
            self._notifier.cancel()
            await asyncio.gather(self._notifier, return_exceptions=True)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    @asynccontextmanager
    async def side_connection(self) -> AsyncIterator[Any]:
        """A connection outside the pool, whose own may be waiting for locks; behind a pooler, one of the pool's."""
        if self._direct_dsn is None or self._closed:
            async with self._pooled() as connection:
                yield connection
            return
        async with self._one_at_a_time:
            if self._connection is None or self._connection.is_closed():
                # A notice need not wait for the disk like other commits: losing one only delays work until the next
                # poll.
                settings = {"synchronous_commit": "off", **self._session}
                self._connection = await open_connection(
                    self._direct_dsn, command_timeout=postgres_sessions.ANSWER_SEC, server_settings=settings
                )
            try:
                yield self._connection
            except TimeoutError:
                self._connection.terminate()
                raise

    def can_join(self, tx: PostgresTx) -> bool:
        """Whether the notice can be part of the only statement of this transaction."""
        is_idle = self.is_quiet() and passed() - self._noticed_at > IDLE_SEC
        return is_idle and bool(tx.wakes) and not tx.told_ends and tx.can_tell()

    def joined(self, tx: PostgresTx) -> tuple[str, str]:
        """Its channel and its payload."""
        self._notifier = asyncio.create_task(self._notify_others(NOTIFY_EVERY_SEC))
        return self.ready_channel, self._payload(tx.wakes)

    def with_commit(self, tx: PostgresTx) -> str:
        """The notification to send with the commit, which saves a round trip. None soon after an earlier one."""
        if not (tx.wakes or tx.told_ends) or not self.is_quiet():
            return ""
        self._notifier = asyncio.create_task(self._notify_others(NOTIFY_EVERY_SEC))
        return f"; set local synchronous_commit = off; {self._notify(tx.wakes, tx.told_ends)}"

    def announce(self, tx: PostgresTx, *, announced: bool) -> None:
        """Wake waiters in this process; notify others now or, soon after an earlier notice, with the next one."""
        if tx.wakes:
            self._wakes.announce(frozenset(tx.wakes))
        if tx.ended:
            self._ends.announce(frozenset(tx.ended))
        if announced:
            return
        self._to_notify |= tx.wakes
        self._ends_to_notify |= tx.told_ends
        if (tx.wakes or tx.told_ends) and self.is_quiet():
            self._notifier = asyncio.create_task(self._notify_others(0))

    def is_quiet(self) -> bool:
        return self._notifier is None or self._notifier.done()

    def _notify(self, lanes: set[int], ended: set[str]) -> str:
        """Only digits, letters, dashes, colons and commas: safe to quote."""
        said = [(self.ready_channel, self._payload(lanes))] if lanes else []
        if ended:
            said.append((self._ends_channel, self._payload(ended)))
        return "; ".join(f"notify {channel}, '{payload}'" for channel, payload in said)

    def _payload(self, items: AbstractSet[Item]) -> str:
        self._noticed_at = passed()
        # Too many for a payload: send an empty list, which means all.
        names = ",".join(str(item) for item in sorted(items)) if len(items) <= MAX_NOTIFIED else ""
        return f"{self._instance}:{names}"

    async def _notify_others(self, after_sec: float) -> None:
        """Notify others, in one notice, of everything announced within a few milliseconds after a notice."""
        await asyncio.sleep(after_sec)
        tries = 0
        while self._to_notify or self._ends_to_notify:
            lanes, self._to_notify = self._to_notify, set()
            ended, self._ends_to_notify = self._ends_to_notify, set()
            try:
                async with self.side_connection() as connection:
                    await connection.execute(self._notify(lanes, ended))  # plain: no transaction behind a pooler
                tries = 0
            except (asyncpg.PostgresError, *LOST) as error:
                tries += 1
                if isinstance(error, LOST) and tries < NOTICE_TRIES:
                    self._to_notify |= lanes
                    self._ends_to_notify |= ended
                else:
                    log.info("a wake-up was not sent (%s); the poll finds the work", error)
            await asyncio.sleep(NOTIFY_EVERY_SEC)

    def lane_wakes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[int]]]:
        return self._announced(self.ready_channel, self._wakes, int)

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return self._announced(self._ends_channel, self._ends, str)

    @asynccontextmanager
    async def _announced(
        self, channel: str, wakes: LocalWakes[Item], kind: Callable[[str], Item]
    ) -> AsyncIterator[AsyncIterator[frozenset[Item]]]:
        listener = asyncio.create_task(self._listen(channel, wakes, kind)) if self._direct_dsn else None
        try:
            async with wakes.subscribe() as stream:
                yield stream
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self, channel: str, wakes: LocalWakes[Item], kind: Callable[[str], Item]) -> None:
        """Keep one direct connection listening; after each reconnect look at all lanes, since wakes were missed."""
        logged, pause = False, LISTEN_AGAIN_SEC
        assert self._direct_dsn is not None

        def on_notice(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            sender, _, named = str(payload).partition(":")
            if sender != self._instance:
                wakes.announce(frozenset(kind(each) for each in named.split(",") if each))

        while True:
            lost = asyncio.Event()
            why: object = "the connection has ended"
            try:
                connection = await open_connection(
                    self._direct_dsn, command_timeout=postgres_sessions.ANSWER_SEC, server_settings=self._session
                )
                try:
                    connection.add_termination_listener(functools.partial(note_loss, lost))
                    await connection.add_listener(channel, on_notice)
                    if logged:
                        log.info("listening for wake-ups again")
                    logged, pause = False, LISTEN_AGAIN_SEC
                    wakes.announce(frozenset())
                    await until_lost(connection, lost, postgres_sessions.RESTED_SEC)
                finally:
                    connection.terminate()
            except (asyncpg.PostgresError, *LOST) as error:
                why = error
            if not logged:  # logged once, however long the database is unreachable
                log.info("not listening for wake-ups (%s); polling continues", why)
                logged = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LISTEN_AGAIN_MAX_SEC)
