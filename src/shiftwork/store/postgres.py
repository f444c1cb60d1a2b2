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
import time
from collections.abc import AsyncIterator, Mapping, Sequence
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
from shiftwork.model.heartbeat_grace import Stall
from shiftwork.store import crash_points, deadline, postgres_callers_transaction, postgres_sessions, postgres_statistics
from shiftwork.store.migrate import Allowed
from shiftwork.store.postgres_clock import DatabaseClock
from shiftwork.store.postgres_errors import AGAIN, LOST, PAUSED, message_of, translate
from shiftwork.store.postgres_notify import Notices
from shiftwork.store.postgres_open import SET_LOCAL, connect, split_url
from shiftwork.store.postgres_pool import Connections, give_up, roll_back
from shiftwork.store.postgres_schema import PUBLIC
from shiftwork.store.postgres_sessions import SessionWatch, session_name
from shiftwork.store.postgres_statistics import TableGrowth, tell_planner
from shiftwork.store.postgres_tx import NO_NOTICE, PostgresTx
from shiftwork.store.stalls import StallDetector, passed
from shiftwork.store.store import Clock, Row, Verb

T = TypeVar("T")
log = logging.getLogger("shiftwork.store")

UNKNOWN = "It is unknown whether this was done; read the task before you try again."
DEADLOCK_TRIES = 5
RECONNECT_SEC = 10.0
"""How long a verb that has not reached its commit is retried while the server restarts or fails over."""

BEGIN = "begin"
BEGIN_READING = "begin isolation level repeatable read read only"
"""A reader sees one consistent snapshot."""

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
        """The schema of the queue's tables."""
        self.operation_max_sec = 30.0
        self.refusal: ShiftworkError | None = None
        self.dsn = dsn
        self._connections = Connections(pool)
        self.direct_dsn = listen_dsn
        self._notices = Notices(schema, listen_dsn, session, self._connection)
        self._behind_pooler = behind_pooler
        self._each_time = SET_LOCAL if behind_pooler else ""
        self._database_clock = DatabaseClock()
        self._clock = clock or self._database_clock.now
        self.stall_detector = StallDetector(self._clock, watches_clock=clock is None)
        self._growth = TableGrowth()
        self._reporting: asyncio.Task[None] | None = None
        self._background: list[asyncio.Task[None]] = []
        self._doubted_at = self._expired_at = 0.0
        """When a call last broke or timed out, and when the connections were last replaced."""
        self._away_since: float | None = None
        """Since when calls have been refused because the database is unreachable."""
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
                f"PostgreSQL: {message_of(error)}",
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
                pool.terminate()  # cancelled callers wait no longer
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
        return await postgres_callers_transaction.run_on(self, connection, verb)

    async def identity(self, *, fresh: bool) -> tuple[str, str]:
        """The identity of the server and database, which a connection of any driver can compare."""
        if self._identity is None or fresh:
            async with self._connection() as connection:
                row = await connection.fetchrow(postgres_callers_transaction.IDENTITY)
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
        while deadline.cancellations() == wanted:  # a caller cancelled during a rollback does not retry
            try:
                return await self._run_once(verb, begin, limit)
            except AGAIN as error:
                deadlocks += 1
                if deadlocks >= DEADLOCK_TRIES:
                    raise StoreLocked(f"PostgreSQL: {message_of(error)}", hint="Try again.") from error
                await asyncio.sleep(random.uniform(0, 0.01 * 2**deadlocks))
            except asyncpg.LockNotAvailableError:
                pass  # it has released its locks, and waits again
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
            await self._connections.release(connection, clean=clean)
        return result

    async def _run_on(self, connection: Any, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        tx = PostgresTx(connection, self._clock(), begin, self._each_time, self.schema)
        if begin == BEGIN and not self._each_time:
            tx.send_alone = functools.partial(self._send_alone, connection, limit, tx.now)
        try:
            result = await verb(tx)
            is_large = tx.rows_added >= postgres_statistics.LARGE
            if tx.begun or self._each_time or is_large:
                await tx.flush_pending()
            if is_large:
                await tell_planner(connection, tx.added, self.schema)
        except BaseException as error:
            ours = isinstance(error, asyncpg.InterfaceError) and not connection.is_closed()
            if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                await self._leave_standby(connection)
            else:
                await roll_back(connection, tx)
            if ours:  # the driver was called wrongly: a retry would look like an outage
                raise StoreError(f"driver: {message_of(error)}") from error
            raise
        announced = False
        try:
            if not tx.is_done:
                async with self._committing(connection, limit, tx.now) as left:
                    announced = await self._commit(connection, tx, left)
        finally:
            # Even if the caller is gone or the outcome is unknown: a needless wake-up is harmless.
            if tx.wakes or tx.ended:
                self._notices.announce(tx, announced=announced)
        connection.record_answer()
        self._note_return()
        if tx.added:
            self._note_growth(tx.added)
        return result

    @asynccontextmanager
    async def _committing(self, connection: Any, limit: asyncio.Timeout, now: float) -> AsyncIterator[float]:
        """Wrap the commit of a transaction of this time, with its time limit."""
        # From here on, a timeout must not be reported as "nothing was changed".
        left = max(0.01, (limit.when() or math.inf) - asyncio.get_running_loop().time())
        limit.reschedule(None)
        try:
            crash_points.reach("before commit")
            yield left
            crash_points.reach("after commit")
        except asyncpg.ReadOnlySQLTransactionError:
            await self._leave_standby(connection)
            raise  # nothing was changed there
        except LOST as error:
            self._doubted_at = passed()
            self._away_since = self._away_since or self.now()
            give_up(connection)
            # The server may have committed: a retry could do it twice, so the caller must check.
            raise _unknown(f"the connection broke during the commit: {message_of(error)}", now) from error
        except asyncio.CancelledError:
            give_up(connection)  # it may still be in its transaction, and the next verb would run inside that
            raise

    async def _send_alone(
        self, connection: Any, limit: asyncio.Timeout, now: float, text: str, values: Sequence[Any]
    ) -> Sequence[Row]:
        until = limit.when()
        async with self._committing(connection, limit, now) as left:
            rows: Sequence[Row] = await connection.fetch(text, *values, timeout=left)
        limit.reschedule(until)  # for what the verb does after it
        return rows

    def _note_return(self) -> None:
        """Record the outage: while the database was unreachable, no heartbeat could arrive."""
        if self._away_since is not None:
            self.stall_detector.forgive(Stall(self._away_since, self.now(), "the database was away"))
            self._away_since = None

    def _note_growth(self, added: Mapping[str, int]) -> None:
        if self._growth.record(added) and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.create_task(self._tell_planner())

    async def _tell_planner(self) -> None:
        """Check which tables have grown, from time to time while rows are added."""
        while added := self._growth.take():
            try:
                async with self._connection() as connection, connection.transaction():
                    grown = await tell_planner(connection, added, self.schema)
                self._growth.record({table: added[table] for table in grown})  # check again whether it is known now
            except (asyncpg.PostgresError, *LOST) as error:
                log.info("could not update the planner's statistics: %s", error)
            await asyncio.sleep(postgres_statistics.LOOK_EVERY_SEC)

    async def _leave_standby(self, connection: Any) -> None:
        """Replace all connections: a new one may reach the new primary; the existing ones never will."""
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
            await self._connections.release(connection, clean=clean)

    async def _borrow(self) -> Any:
        """A connection of the pool that has answered recently, or answers now."""
        connection = await self._connections.borrow()
        trusted_since = max(passed() - postgres_sessions.RESTED_SEC, self._doubted_at)
        # Behind a pooler the answer would wait for a session, and say nothing about the network.
        if not self._behind_pooler and not connection.has_answered_since(trusted_since):
            try:
                await self._ask(connection)
            except BaseException:
                await self._connections.release(connection, clean=False)
                raise
        return connection

    async def _ask(self, connection: Any) -> None:
        """Check before beginning anything that the server still answers; if not, trust no connection."""
        asked_at = passed()
        try:
            await connection.execute("select 1", timeout=postgres_sessions.ANSWER_SEC)
        except BaseException as error:
            give_up(connection)
            if isinstance(error, LOST) and self._expired_at < asked_at:
                self._expired_at = passed()
                await self._connections.replace_all()
            raise
        connection.record_answer()

    async def _commit(self, connection: Any, tx: PostgresTx, left: float) -> bool:
        """Commit; true if other processes were notified in the same message. A standalone statement has committed
        itself.
        """
        if not tx.begun:
            return await self._commit_alone(tx, left)
        notice = self._notices.with_commit(tx)
        try:
            await connection.execute("commit" + notice, timeout=left)
        except NO_NOTICE as error:
            # Only a notice hits this limit or takes this lock; a commit alone does not.
            log.info("a wake-up was not sent (%s); retrying once", error)
            return False
        except asyncpg.PostgresError as error:
            if not notice or isinstance(error, LOST):
                raise
            raise _unknown(f"PostgreSQL, during the commit: {message_of(error)}", tx.now) from error
        return bool(notice)

    async def _commit_alone(self, tx: PostgresTx, left: float) -> bool:
        if self._notices.can_join(tx):
            return await tx.flush_and_notify(*self._notices.joined(tx), left)
        await tx.flush(left)
        return False

    def lane_wakes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[int]]]:
        return self._notices.lane_wakes()

    @property
    def announces_ends(self) -> bool:
        return self.direct_dsn is not None

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return self._notices.endings()

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
        await self._notices.send_last()
        tasks = [*self._background, *([self._reporting] if self._reporting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._notices.close()
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
            async with self._notices.side_connection() as connection:
                # Over another route, to a pooler or a separate server for wake-ups, process ids mean something else.
                known = self._connections.in_use if self.direct_dsn == self.dsn else []
                if await watch.look(connection, known):
                    self._doubted_at = passed()
        except (asyncpg.PostgresError, *LOST) as error:
            log.info("could not check for silent sessions: %s", error)
            return False
        return True


def _unknown(what: str, now: float) -> StoreUnavailable:
    error = StoreUnavailable(what, hint=UNKNOWN)
    error.transaction_at = now
    return error
