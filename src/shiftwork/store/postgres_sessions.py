"""PostgreSQL sessions: our own, which a network can drop, and others, whose process can stop.

The server itself ends a session that is idle in a transaction. It does not count a session as idle that has sent a
statement but not yet its values, or the rows of a COPY: a process suspended or cut off at that point would hold its
locks forever. Other processes of the fleet end such a session. Nothing was changed; its process, if it returns,
retries.

Other long holders of locks, such as a migration or an open psql, are left alone, and waiting calls log them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from shiftwork.store.postgres_driver_internals import unanswered
from shiftwork.store.postgres_schema import PUBLIC
from shiftwork.store.stalls import passed

log = logging.getLogger("shiftwork.store")

NAME = "shiftwork"
CLOSE_SEC = 2.0
RESTED_SEC = 10.0
"""A connection without an answer for this long is checked before use: a network may have dropped it silently."""

ANSWER_SEC = 5.0
"""A query that needs no lock and no disk is answered within this time, or never."""

LOOK_EVERY_SEC = 5.0

WAITING = """
select a.pid, a.backend_start, a.state_change, coalesce(c.bytes_processed, 0)
from pg_stat_activity a left join pg_stat_progress_copy c on c.pid = a.pid
where a.datname = current_database() and a.usename = current_user
  and a.application_name = current_setting('application_name') and a.pid <> pg_backend_pid()
  and a.state = 'active' and a.wait_event = 'ClientRead' and a.xact_start is not null"""
"""Sessions of this fleet (they share a name) that wait for the rest of a message from their process."""

BLOCKED = """
select w.pid, l.waitstart, b.pid as holder, b.application_name, b.state, left(b.query, 200) as query,
  extract(epoch from clock_timestamp() - l.waitstart)::float8 as waited,
  extract(epoch from clock_timestamp() - b.xact_start)::float8 as held
from unnest($1::int[]) as ours(pid) join pg_locks l on l.pid = ours.pid and not l.granted
join pg_stat_activity w on w.pid = l.pid and w.datname = current_database()
cross join unnest(pg_blocking_pids(w.pid)) as holding(pid) join pg_stat_activity b on b.pid = holding.pid
where l.waitstart < clock_timestamp() - make_interval(secs => $2)"""
"""Our sessions that have waited this long for a lock, and the sessions that hold it."""

UNHEARD = """
select ours.pid, a.state_change from unnest($1::int[]) as ours(pid) left join pg_stat_activity a on a.pid = ours.pid
  and a.usename = current_user and a.application_name = current_setting('application_name')
where a.pid is null or a.wait_event = 'ClientRead'"""
"""Our sessions that the server ended or, as a new primary, does not know, and those that wait for our next message."""

END = "select count(*) from unnest($1::int[]) as silent(pid) where pg_terminate_backend(pid)"


def session_name(dsn: str, schema: str = PUBLIC) -> dict[str, str]:
    """The application name of our sessions, unless the address sets one.

    Each queue has its own name: sessions of one name may end each other.
    """
    named = dict(parse_qsl(urlsplit(dsn).query)).get("application_name")
    return {"application_name": named or (NAME if schema == PUBLIC else f"{NAME} {schema}")}


class Session(asyncpg.Connection):
    """A connection that records its last answer, and that closes quickly even if the server does not answer."""

    __slots__ = ("answered_at",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answered_at = passed()

    def record_answer(self) -> None:
        self.answered_at = passed()

    def has_answered_since(self, moment: float) -> bool:
        return self.answered_at >= moment

    def begin_with_next(self, begin: str) -> None:
        """Begin a transaction together with the next statement, which saves a round trip.

        The driver cannot pipeline messages, so this bypasses it: without a Sync of its own, the server answers `begin`
        together with what follows, and the driver skips an answer without rows. Use it only if
        `postgres_shortcuts.can_begin_with_next` allows it.
        """
        self._transport.write(unanswered(begin))  # type: ignore[attr-defined]  # the stubs do not show it

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the driver has it
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the driver still drops it
            await super().close(timeout=CLOSE_SEC if timeout is None else timeout)


class SilentSessions:
    """Compares each check with the previous one: a session that has not changed in between is silent."""

    def __init__(self) -> None:
        self._waited: set[tuple[Any, ...]] = set()

    async def end(self, connection: Any) -> None:
        """End the sessions that have not changed since the last check."""
        async with connection.transaction():  # outside of one a pooler may send each message to another server
            waiting = {tuple(row) for row in await connection.fetch(WAITING)}
            silent = sorted(pid for pid, *_ in waiting & self._waited)
            self._waited = waiting
            if silent:
                ended = await connection.fetchval(END, silent)
                log.warning("ended %d sessions whose process stopped in the middle of a transaction: %s", ended, silent)


class LostAnswers:
    """Finds calls that wait for the server while it waits for them, because a network has dropped a message.

    A call sends its next message as soon as it has the last answer. So if neither side changes between two checks,
    nothing more will arrive, and the call would only end at its time limit.
    """

    def __init__(self) -> None:
        self._waited: set[tuple[Any, ...]] = set()

    async def end(self, connection: Any, in_use: Mapping[int, Any], answered: Mapping[int, float]) -> bool:
        """End the sessions of such calls and close their connections, so that the calls start again; returns whether
        there were any.

        Connections are named by their sessions, each with the time of its last answer.
        """
        async with connection.transaction():
            rows = await connection.fetch(UNHEARD, list(in_use))
            waiting = {(row["pid"], row["state_change"], answered[row["pid"]]) for row in rows}
            found = waiting & self._waited
            self._waited = waiting
            await connection.fetchval(END, [pid for pid, since, _ in found if since is not None])
        lost = sorted(pid for pid, *_ in found)
        for pid in lost:
            with suppress(asyncpg.InterfaceError):  # its call has ended meanwhile
                in_use[pid].terminate()
        if lost:
            log.warning("a network lost messages of calls; closed their sessions: %s", lost)
        return bool(lost)


class Waits:
    """Logs calls that wait for a lock, once each."""

    def __init__(self) -> None:
        self._reported: set[tuple[Any, ...]] = set()

    async def tell(self, connection: Any, pids: list[int]) -> None:
        """Log the sessions that have blocked these since the last check or longer."""
        async with connection.transaction():
            found = {
                (row["pid"], row["waitstart"], row["holder"]): row
                for row in await connection.fetch(BLOCKED, pids, LOOK_EVERY_SEC)
            }
        for row in (found[wait] for wait in found.keys() - self._reported):
            log.warning(
                "a call has waited %.1f s for a lock of session %d (%s, %s, in its transaction for %.1f s): %s",
                row["waited"],
                row["holder"],
                row["application_name"] or "without a name",
                row["state"] or "unknown",
                row["held"] or 0.0,
                row["query"],
            )
        self._reported = set(found)


class SessionWatch:
    """Checks the sessions of a process's fleet, and ends or logs the stuck ones."""

    def __init__(self) -> None:
        self._waits = Waits()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all earlier checks."""
        self._silent, self._lost = SilentSessions(), LostAnswers()

    async def pause(self) -> None:
        """Wait until the next check. If this process itself was suspended meanwhile, its own sessions look silent."""
        began = passed()
        await asyncio.sleep(LOOK_EVERY_SEC)
        if passed() - began > 1.5 * LOOK_EVERY_SEC:
            self.begin_anew()

    async def look(self, connection: Any, in_use: Sequence[Any]) -> bool:
        """Whether a network has lost messages or answers of calls on the connections in use."""
        sessions = {used.get_server_pid(): used for used in in_use}
        answered = {pid: used.answered_at for pid, used in sessions.items()}  # a call may end before the answer arrives
        await self._silent.end(connection)
        if not sessions:
            return False
        lost = await self._lost.end(connection, sessions, answered)
        await self._waits.tell(connection, list(sessions))
        return lost


def note_loss(lost: asyncio.Event, _connection: Any) -> None:
    lost.set()


async def until_lost(connection: Any, lost: asyncio.Event, every_sec: float) -> None:
    """Wait until the listening connection is lost. A listener does not notice a dropped connection, so query it
    regularly.
    """
    while not lost.is_set():
        try:
            async with asyncio.timeout(every_sec):
                await lost.wait()
        except TimeoutError:
            await connection.execute("select 1")
