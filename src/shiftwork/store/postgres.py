"""PostgreSQL: verbs on pooled connections, LISTEN/NOTIFY wake-ups, and the database's clock for all servers.

Needs no session state, so it works behind PgBouncer in transaction mode (`?pgbouncer=true`); then wake-ups come over
an optional direct connection (`&listen=<direct url>`) or by polling alone. With `?schema=name` all tables are in that
schema; statements name it, so that costs nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg

from shiftwork.model.errors import (
    OperationTimeout,
    ShiftworkError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsuitable,
)
from shiftwork.model.silence import Stall
from shiftwork.store import crash_points, deadline, postgres_growth, postgres_joining
from shiftwork.store.hearing import StallDetector, passed
from shiftwork.store.migrate import Allowed
from shiftwork.store.postgres_clock import DatabaseClock
from shiftwork.store.postgres_connecting import open_connection
from shiftwork.store.postgres_errors import AGAIN, LOST, PAUSED, says, translate
from shiftwork.store.postgres_growth import TableGrowth, tell_planner
from shiftwork.store.postgres_opening import SET_LOCAL, connect, split_url
from shiftwork.store.postgres_pool import Connections, give_up, roll_back
from shiftwork.store.postgres_schema import PUBLIC, channels
from shiftwork.store.postgres_sessions import SessionWatch, note_loss, session_name, until_lost
from shiftwork.store.postgres_tx import NO_NOTICE, PostgresTx
from shiftwork.store.store import Clock, Row, Verb
from shiftwork.store.wakes import LocalWakes

T = TypeVar("T")
Item = TypeVar("Item", int, str)
log = logging.getLogger("shiftwork.store")

NOTIFY_EVERY_SEC = 0.005
"""A lane is announced to other processes at most this often: a storm of submits is not a storm of wake-ups."""

IDLE_SEC = 0.05
"""After this long without a notice one travels in the statement it is about, and is heard half a millisecond sooner.
Not always: commits with a notice wait for each other, in all processes of a fleet."""

NOTICE_TRIES = 3
"""How often a notice is sent over connections that turn out to be gone."""

LISTEN_AGAIN_SEC = 0.25
LISTEN_AGAIN_MAX_SEC = 2.0
"""Who has lost the connection it listens on tries again after the first, and less and less often up to the second."""

LAST_NOTICE_SEC = 1.0
MAX_NOTIFIED = 200
"""Lanes in one payload, which holds 8,000 bytes at most."""

UNKNOWN = "It is not known whether this was done; read the task before you try again."
DEADLOCK_TRIES = 5
RECONNECT_SEC = 10.0
"""How long a verb that has not reached its commit is tried again while the server restarts or fails over."""

RESTED_SEC = 10.0
"""After this long without an answer a connection is asked first: a network may have dropped it silently."""

ANSWER_SEC = 5.0
"""What needs no lock and no disk is answered within this time, or never."""

BEGIN = "begin"
BEGIN_READING = "begin isolation level repeatable read read only"
"""Everything a reader sees comes from one moment."""

CLOCK_EVERY_SEC = 10.0


class PostgresStore:
    """A queue in a PostgreSQL database, shared by any number of processes."""

    one_writer = False

    def __init__(
        self,
        url: str,
        pool: Any,
        listen_dsn: str | None,
        clock: Clock | None,
        dsn: str,
        schema: str,
        session: dict[str, str],
        *,
        behind_pooler: bool,
    ) -> None:
        self.url = url
        self.schema = schema
        """Where the queue's tables are in the database."""
        self._session = session
        self._ready_channel, self._ends_channel = channels(schema)
        self.wakes: LocalWakes[int] = LocalWakes()
        self.ends: LocalWakes[str] = LocalWakes()
        self.operation_max_sec = 30.0
        self.refusal: ShiftworkError | None = None
        self.dsn = dsn
        self._connections = Connections(pool)
        self.direct_dsn = listen_dsn
        self._behind_pooler = behind_pooler
        self._each_time = SET_LOCAL if behind_pooler else ""
        self._database_clock = DatabaseClock()
        self._clock = clock or self._database_clock.now
        self.stall_detector = StallDetector(self._clock, watches_clock=clock is None)
        self._instance = secrets.token_hex(4)
        self._to_notify: set[int] = set()
        self._ends_to_notify: set[str] = set()
        self._notifier: asyncio.Task[None] | None = None
        self._growth = TableGrowth()
        self._reporting: asyncio.Task[None] | None = None
        self._noticed_at = 0.0
        self._messenger: Any = None
        self._aside_alone = asyncio.Lock()
        self._background: list[asyncio.Task[None]] = []
        self._doubted_at = self._expired_at = 0.0
        """When a call was last cut off or not answered in time; when the connections were last replaced."""
        self._away_since: float | None = None
        """When calls began to be refused for want of a database."""
        self._identity: tuple[str, str] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock | None = None, pool_size: int = 10, migrate_schema: Allowed = True
    ) -> PostgresStore:
        """Connect, check the server and bring the schema up to date."""
        dsn, options = split_url(url)
        named = options.get("schema")
        behind_pooler = options.get("pgbouncer", "false").lower() in {"1", "true", "yes"}
        listen = None if behind_pooler else dsn
        if "listen" in options:
            listen, _ = split_url(options["listen"])
        try:
            pool, schema = await connect(
                dsn, pool_size=pool_size, behind_pooler=behind_pooler, allowed=migrate_schema, schema=named
            )
        except ShiftworkError:
            raise
        except asyncpg.ProtocolViolationError as error:
            raise StoreUnsuitable(
                f"PostgreSQL: {says(error)}",
                hint="This looks like a pooler: add ?pgbouncer=true to the address, or name the server itself.",
            ) from error
        except (asyncpg.PostgresError, *LOST, ValueError) as error:
            raise translate(error) from error
        session = session_name(dsn, named or PUBLIC)
        store = cls(url, pool, listen, clock, dsn, schema, session, behind_pooler=behind_pooler)
        if clock is None:
            try:
                await store._measure_clock()
            except (asyncpg.PostgresError, *LOST) as error:
                await store.close()
                raise translate(error) from error
            except BaseException:
                pool.terminate()  # anyone who was cancelled waits no longer
                raise
            store._background.append(asyncio.create_task(store._keep_clock()))
        store._background.append(asyncio.create_task(store._watch_sessions()))
        return store

    async def run(self, verb: Verb[T], /) -> T:
        return await self._run(verb, BEGIN)

    async def read(self, verb: Verb[T], /) -> T:
        return await self._run(verb, BEGIN_READING)

    async def read_in_turn(self, verb: Verb[T], /) -> T:
        return await self.read(verb)

    async def run_on(self, connection: Any, verb: Verb[T], /) -> T:
        if self._closed:
            raise StoreClosed("this queue was closed")
        return await postgres_joining.run_on(self, connection, verb)

    async def identity(self, *, fresh: bool) -> tuple[str, str]:
        """Which database of which server this is, as a connection of any driver can compare it."""
        if self._identity is None or fresh:
            async with self._connection() as connection:
                row = await connection.fetchrow(postgres_joining.IDENTITY)
            self._identity = row["server"], row["database"]
        return self._identity

    async def _run(self, verb: Verb[T], begin: str) -> T:
        if self._closed:
            raise StoreClosed("this queue was closed")
        left = deadline.left(self.operation_max_sec)
        try:
            async with asyncio.timeout(left) as limit:
                return await self._run_until_done(verb, begin, limit)
        except (StoreFull, StoreReadOnly) as error:
            self.refusal = error
            raise
        except TimeoutError:
            self._doubted_at = passed()
            raise OperationTimeout(f"the database did not answer within {left:.3g} s") from None

    async def _run_until_done(self, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        deadlocks, gone_since = 0, None
        wanted = deadline.cancellations()
        while deadline.cancellations() == wanted:  # anyone who was cancelled during a rollback does not try again
            try:
                return await self._run_once(verb, begin, limit)
            except AGAIN as error:
                deadlocks += 1
                if deadlocks >= DEADLOCK_TRIES:
                    raise StoreLocked(f"PostgreSQL: {says(error)}", hint="Try again.") from error
                await asyncio.sleep(random.uniform(0, 0.01 * 2**deadlocks))
            except asyncpg.LockNotAvailableError:
                pass  # it has given back the locks that it had, and waits again
            except PAUSED as error:
                gone_since = gone_since or time.monotonic()
                if self._closed or time.monotonic() - gone_since > RECONNECT_SEC:
                    self._away_since = self._away_since or self.now()
                    raise translate(error) from error
                await asyncio.sleep(random.uniform(0.05, 0.2))
            except (asyncpg.PostgresError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and deadline.cancellations():
                    raise
                raise translate(error) from error
        raise asyncio.CancelledError

    async def _run_once(self, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        connection = await self._borrow()
        clean = False
        try:
            result = await self._run_on(connection, verb, begin, limit)
            clean = True
        finally:
            await self._connections.give_back(connection, clean=clean)
        return result

    async def _run_on(self, connection: Any, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        tx = PostgresTx(connection, self._clock(), begin, self._each_time, self.schema)
        if begin == BEGIN and not self._each_time:
            tx.send_alone = functools.partial(self._send_alone, connection, limit)
        try:
            result = await verb(tx)
            is_large = tx.rows_added >= postgres_growth.LARGE
            if tx.begun or self._each_time or is_large:
                await tx.go_on()
            if is_large:
                await tell_planner(connection, tx.added, self.schema)
        except BaseException as error:
            ours = isinstance(error, asyncpg.InterfaceError) and not connection.is_closed()
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                await self._leave_standby(connection)
            else:
                await roll_back(connection, tx)
            if ours:  # the driver was called wrongly: to try again would look like an outage
                raise StoreError(f"driver: {says(error)}") from error
            raise
        announced = False
        try:
            if not tx.is_done:
                async with self._committing(connection, limit) as left:
                    announced = await self._commit(connection, tx, left)
        finally:
            # Also where the caller has gone or no one knows what came of it: to look in vain is harmless.
            if tx.wakes or tx.ended:
                self._announce(tx, announced=announced)
        connection.record_answer()
        self._note_return()
        if tx.added:
            self._note_growth(tx.added)
        return result

    @asynccontextmanager
    async def _committing(self, connection: Any, limit: asyncio.Timeout) -> AsyncIterator[float]:
        """Around what commits; with how long it may take."""
        # From here on running out of time must not be reported as "nothing was changed".
        left = max(0.01, (limit.when() or math.inf) - asyncio.get_running_loop().time())
        limit.reschedule(None)
        try:
            crash_points.reach("before commit")
            yield left
            crash_points.reach("after commit")
        except asyncpg.ReadOnlySQLTransactionError:
            await self._leave_standby(connection)
            raise  # nothing was done there
        except LOST as error:
            self._doubted_at = passed()
            give_up(connection)
            # The server may have committed: trying again could do it twice, so the caller must look.
            what = f"the connection broke during the commit: {says(error)}"
            raise StoreUnavailable(what, hint=UNKNOWN) from error
        except asyncio.CancelledError:
            give_up(connection)  # it may still be in its transaction, and the next verb would be in it, too
            raise

    async def _send_alone(
        self, connection: Any, limit: asyncio.Timeout, text: str, values: Sequence[Any]
    ) -> Sequence[Row]:
        until = limit.when()
        async with self._committing(connection, limit) as left:
            rows: Sequence[Row] = await connection.fetch(text, *values, timeout=left)
        limit.reschedule(until)  # for what the verb does after it
        return rows

    def _note_return(self) -> None:
        """Calls were refused since the database was away: nor could agents be heard."""
        if self._away_since is not None:
            self.stall_detector.forgive(Stall(self._away_since, self.now(), "the database was away"))
            self._away_since = None

    def _note_growth(self, added: Mapping[str, int]) -> None:
        if self._growth.record(added) and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.create_task(self._tell_planner())

    async def _tell_planner(self) -> None:
        """Look what has grown, now and then for as long as rows come."""
        while added := self._growth.take():
            try:
                async with self._connection() as connection, connection.transaction():
                    grown = await tell_planner(connection, added, self.schema)
                self._growth.record({table: added[table] for table in grown})  # to see whether it is known now
            except (asyncpg.PostgresError, *LOST) as error:
                log.info("could not update the planner's statistics: %s", error)
            await asyncio.sleep(postgres_growth.LOOK_EVERY_SEC)

    async def _leave_standby(self, connection: Any) -> None:
        """Whatever connection is made next may lead to the new primary; this one never will, nor its neighbours."""
        give_up(connection)
        await self._connections.replace_all()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await self._borrow()
        clean = False
        try:
            yield connection
            clean = True
        finally:
            await self._connections.give_back(connection, clean=clean)

    async def _borrow(self) -> Any:
        """One of the pool's that was answered lately, or is now."""
        connection = await self._connections.borrow()
        # Behind a pooler the answer would wait for a session, and say nothing about the network.
        if not self._behind_pooler and not connection.has_answered_since(max(passed() - RESTED_SEC, self._doubted_at)):
            try:
                await self._ask(connection)
            except BaseException:
                await self._connections.give_back(connection, clean=False)
                raise
        return connection

    async def _ask(self, connection: Any) -> None:
        """Find out before anything is begun whether the server still hears us; if not, no connection is trusted."""
        asked_at = passed()
        try:
            await connection.execute("select 1", timeout=ANSWER_SEC)
        except BaseException as error:
            give_up(connection)
            if isinstance(error, LOST) and self._expired_at < asked_at:
                self._expired_at = passed()
                await self._connections.replace_all()
            raise
        connection.record_answer()

    async def _commit(self, connection: Any, tx: PostgresTx, left: float) -> bool:
        """True if other processes were notified of the work in the same breath. A statement alone commits by itself."""
        if not tx.begun:
            return await self._commit_alone(tx, left)
        notice = self._notice(tx)
        try:
            await connection.execute("commit" + notice, timeout=left)
        except NO_NOTICE as error:
            # A commit knows no such limit and takes no such lock, a notice does.
            log.info("a wake-up was not sent (%s); it is tried once more", error)
            return False
        except asyncpg.PostgresError as error:
            if not notice or isinstance(error, LOST):
                raise
            raise StoreUnavailable(f"PostgreSQL, during the commit: {says(error)}", hint=UNKNOWN) from error
        return bool(notice)

    async def _commit_alone(self, tx: PostgresTx, left: float) -> bool:
        idle = self._is_quiet() and passed() - self._noticed_at > IDLE_SEC
        if not (idle and tx.wakes and not tx.told_ends and tx.can_tell()):
            await tx.flush(left)
            return False
        self._notifier = asyncio.create_task(self._notify_others(NOTIFY_EVERY_SEC))
        return await tx.flush_and_tell(self._ready_channel, self._payload(tx.wakes), left)

    def now(self) -> float:
        return self._clock()

    async def settle_events(self) -> None:
        """Writers of events hold a lock on the table before they take a number; wait for those that do now."""
        holders = await self._event_writers()
        while holders:
            await asyncio.sleep(0.002)
            holders &= await self._event_writers()

    async def _event_writers(self) -> set[str]:
        async def look(tx: Any) -> set[str]:
            return {row["holder"] for row in await tx.all("event_writers")}

        return await self.read(look)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        last = [self._notifier] if self._notifier else []
        if last:  # a program that submits and exits has not notified others yet
            await asyncio.wait(last, timeout=LAST_NOTICE_SEC)
        tasks = [*self._background, *last, *([self._reporting] if self._reporting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._messenger is not None:
            self._messenger.terminate()
        try:
            await asyncio.wait_for(self._connections.close(), 5)
        except (TimeoutError, OSError, asyncpg.PostgresError):
            self._connections.terminate()

    async def _measure_clock(self) -> None:
        async with self._connection() as connection:
            await self._database_clock.measure(connection)

    async def _keep_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_EVERY_SEC)
            with suppress(asyncpg.PostgresError, *LOST):  # it is measured again soon
                await self._measure_clock()

    async def _watch_sessions(self) -> None:
        watch = SessionWatch()
        while True:
            await watch.pause()
            if not await self._look(watch):
                await self._look(watch)  # over a new connection: a network may have dropped that one, too

    async def _look(self, watch: SessionWatch) -> bool:
        try:
            await self._connections.return_spare()
            async with self._aside() as connection:
                known = [] if self._behind_pooler else self._connections.in_use  # a pooler has numbers of its own
                if await watch.look(connection, known):
                    self._doubted_at = passed()
        except (asyncpg.PostgresError, *LOST) as error:
            log.info("could not check for silent sessions: %s", error)
            return False
        return True

    @asynccontextmanager
    async def _aside(self) -> AsyncIterator[Any]:
        """A connection outside the pool, which may be waiting for locks; behind a pooler it is one of those."""
        if self.direct_dsn is None or self._closed:
            async with self._connection() as connection:
                yield connection
            return
        async with self._aside_alone:
            if self._messenger is None or self._messenger.is_closed():
                # A notice need not wait for the disk, as other commits do: to lose one costs a poll.
                settings = {"synchronous_commit": "off", **self._session}
                self._messenger = await open_connection(
                    self.direct_dsn, command_timeout=ANSWER_SEC, server_settings=settings
                )
            try:
                yield self._messenger
            except TimeoutError:
                self._messenger.terminate()
                raise

    def _notice(self, tx: PostgresTx) -> str:
        """What tells other processes, to be sent with the commit: a round trip less. None soon after another."""
        if not (tx.wakes or tx.told_ends) or not self._is_quiet():
            return ""
        self._notifier = asyncio.create_task(self._notify_others(NOTIFY_EVERY_SEC))
        return f"; set local synchronous_commit = off; {self._notify(tx.wakes, tx.told_ends)}"

    def _announce(self, tx: PostgresTx, *, announced: bool) -> None:
        """Wake waiters in this process; notify others now or, soon after an earlier notice, with the next one."""
        if tx.wakes:
            self.wakes.announce(frozenset(tx.wakes))
        if tx.ended:
            self.ends.announce(frozenset(tx.ended))
        if announced:
            return
        self._to_notify |= tx.wakes
        self._ends_to_notify |= tx.told_ends
        if (tx.wakes or tx.told_ends) and self._is_quiet():
            self._notifier = asyncio.create_task(self._notify_others(0))

    def _is_quiet(self) -> bool:
        return self._notifier is None or self._notifier.done()

    def _notify(self, lanes: set[int], ended: set[str]) -> str:
        """Digits, letters, dashes, a colon and commas alone."""
        said = [(self._ready_channel, self._payload(lanes))] if lanes else []
        if ended:
            said.append((self._ends_channel, self._payload(ended)))
        return "; ".join(f"notify {channel}, '{payload}'" for channel, payload in said)

    def _payload(self, items: AbstractSet[Item]) -> str:
        self._noticed_at = passed()
        # More than fit into a payload: an empty list, which means all of them.
        names = ",".join(str(item) for item in sorted(items)) if len(items) <= MAX_NOTIFIED else ""
        return f"{self._instance}:{names}"

    async def _notify_others(self, after_sec: float) -> None:
        """Notify others of what came within a few milliseconds after a notice, as one."""
        await asyncio.sleep(after_sec)
        tries = 0
        while self._to_notify or self._ends_to_notify:
            lanes, self._to_notify = self._to_notify, set()
            ended, self._ends_to_notify = self._ends_to_notify, set()
            try:
                async with self._aside() as connection:
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
        return self._announced(self._ready_channel, self.wakes, int)

    @property
    def hears_endings(self) -> bool:
        return self.direct_dsn is not None

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return self._announced(self._ends_channel, self.ends, str)

    @asynccontextmanager
    async def _announced(
        self, channel: str, wakes: LocalWakes[Item], kind: Callable[[str], Item]
    ) -> AsyncIterator[AsyncIterator[frozenset[Item]]]:
        listener = asyncio.create_task(self._listen(channel, wakes, kind)) if self.direct_dsn else None
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
        assert self.direct_dsn is not None

        def heard(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
            sender, _, named = str(payload).partition(":")
            if sender != self._instance:
                wakes.announce(frozenset(kind(each) for each in named.split(",") if each))

        while True:
            lost = asyncio.Event()
            why: object = "the connection has ended"
            try:
                connection = await open_connection(
                    self.direct_dsn, command_timeout=ANSWER_SEC, server_settings=self._session
                )
                try:
                    connection.add_termination_listener(functools.partial(note_loss, lost))
                    await connection.add_listener(channel, heard)
                    if logged:
                        log.info("listening for wake-ups again")
                    logged, pause = False, LISTEN_AGAIN_SEC
                    wakes.announce(frozenset())
                    await until_lost(connection, lost, RESTED_SEC)
                finally:
                    connection.terminate()
            except (asyncpg.PostgresError, *LOST) as error:
                why = error
            if not logged:  # once, however long the database is away
                log.info("not listening for wake-ups (%s); polling continues", why)
                logged = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LISTEN_AGAIN_MAX_SEC)
