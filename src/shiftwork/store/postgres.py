"""PostgreSQL: verbs on pooled connections, LISTEN/NOTIFY wake-ups, and the database's clock for all servers.

Needs no session state, so it works behind PgBouncer in transaction mode (`?pgbouncer=true`); then wake-ups come over
an optional direct connection (`&listen=<direct url>`) or by polling alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from shiftwork.core.errors import (
    BadText,
    InputError,
    OperationTimeout,
    ShiftworkError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNeedsMigration,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsuitable,
)
from shiftwork.store import migrate
from shiftwork.store.postgres_tx import PostgresTx
from shiftwork.store.store import Clock, Verb
from shiftwork.store.wakes import LocalWakes

T = TypeVar("T")
log = logging.getLogger("shiftwork.store")

OLDEST_SERVER = 14
CHANNEL = "task_ready"
MIGRATION_LOCK = 0x5AF7_0001
NOTIFY_EVERY_SEC = 0.005
"""A lane is announced to other processes at most this often: a storm of submits is not a storm of wake-ups."""

LAST_NOTICE_SEC = 1.0
MOST_NOTIFIED = 500
"""Lanes in one payload, which holds 8,000 bytes at most."""

CONNECT_SEC = 10.0
DEADLOCK_TRIES = 5
ROLLBACK_SEC = 2.0
RECONNECT_SEC = 10.0
"""How long a verb that has not reached its commit is tried again while the server restarts or fails over."""

SESSION = {
    "jit": "off",
    "random_page_cost": "1.1",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "idle_in_transaction_session_timeout": "10s",
}
"""Our statements reach few rows by index. Without statistics, right after a bulk load, the planner would rather read
the whole table for a batch of 500; and it would plan each batch anew, since it sees how long it is (0.3 ms a claim). A
process that is stopped in the middle must not hold its locks for ever: the whole fleet may wait for them."""

SET_LOCAL = "".join(f"; set local {name} = '{value}'" for name, value in SESSION.items())
"""The same for one transaction: a pooler hands the connection on. It costs 0.15 ms each time, so only there."""

BEGIN = "begin"
BEGIN_READING = "begin isolation level repeatable read read only"
"""Everything a reader is told comes from one moment."""

REMEMBERED = 16_384
"""Ids kept in both forms: one task's id crosses the wire fifteen times from its claim to its result (10 us a task)."""

CLOCK_EVERY_SEC = 10.0
CLOCK_JUMP_SEC = 1.0

_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that broke between two of our statements
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a demoted primary: look for the new one
)
_ERRORS: tuple[tuple[type[BaseException], type[ShiftworkError]], ...] = (
    (asyncpg.ReadOnlySQLTransactionError, StoreReadOnly),
    (asyncpg.InsufficientPrivilegeError, StoreReadOnly),
    (asyncpg.DiskFullError, StoreFull),
    (asyncpg.LockNotAvailableError, StoreLocked),
    (asyncpg.QueryCanceledError, OperationTimeout),
    (asyncpg.UndefinedTableError, StoreNeedsMigration),
    (asyncpg.DuplicateTableError, StoreUnsuitable),  # a database with tables of another program
    (asyncpg.UntranslatableCharacterError, BadText),
    (asyncpg.CharacterNotInRepertoireError, BadText),
    (asyncpg.DataError, InputError),  # the driver's, too: what it cannot write is the caller's mistake
    (asyncpg.InvalidCatalogNameError, StoreUnavailable),
    (asyncpg.InvalidAuthorizationSpecificationError, StoreUnavailable),
    (asyncpg.PostgresConnectionError, StoreUnavailable),
    (asyncpg.InterfaceError, StoreUnavailable),
    (asyncpg.InternalClientError, StoreUnavailable),
    (asyncpg.OperatorInterventionError, StoreUnavailable),
    (asyncpg.InsufficientResourcesError, StoreUnavailable),
    (OSError, StoreUnavailable),
)


def translate(error: BaseException) -> ShiftworkError:
    """The queue's own error for what the server or the network said."""
    if isinstance(error.__cause__, UnicodeEncodeError):
        return BadText("text holds a lone surrogate")
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"PostgreSQL says: {error}")
    return StoreError(f"PostgreSQL says: {error}")


class DatabaseClock:
    """The server's clock, read through this machine's monotonic one; the same for every process of a fleet."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._measured = False
        self.jumped_at = 0.0

    def now(self) -> float:
        return time.monotonic() + self._offset

    async def measure(self, connection: Any) -> None:
        """Best of five: the answer with the shortest round trip has the smallest error."""
        samples: list[tuple[float, float]] = []
        async with connection.transaction():  # outside of one a pooler may send each message to another server
            for _ in range(5):
                sent = time.monotonic()
                there = await connection.fetchval("select extract(epoch from clock_timestamp())::float8")
                back = time.monotonic()
                samples.append((back - sent, there - (sent + back) / 2))
        self._take(min(samples)[1])

    def _take(self, offset: float) -> None:
        jumped = self._measured and abs(offset - self._offset) > CLOCK_JUMP_SEC
        self._offset, self._measured = offset, True
        if jumped:
            self.jumped_at = self.now()
            log.warning("the database's clock moved by more than %g s; reclaim by silence rests", CLOCK_JUMP_SEC)


class PostgresStore:
    """A queue in a PostgreSQL database, shared by any number of processes."""

    def __init__(
        self, url: str, pool: Any, listen_dsn: str | None, clock: Clock | None, dsn: str, *, behind_pooler: bool
    ) -> None:
        self.url = url
        self.wakes = LocalWakes()
        self.operation_max_sec = 30.0
        self.dsn = dsn
        self._pool = pool
        self._listen_dsn = listen_dsn
        self._each_time = SET_LOCAL if behind_pooler else ""
        self._database_clock = DatabaseClock()
        self._clock = clock or self._database_clock.now
        self._instance = secrets.token_hex(4)
        self._to_notify: set[int] = set()
        self._notifier: asyncio.Task[None] | None = None
        self._messenger: Any = None
        self._background: list[asyncio.Task[None]] = []
        self._closed = False

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock | None = None, pool_size: int = 10, migrate_schema: bool = True
    ) -> PostgresStore:
        """Connect, check the server and bring the schema up to date."""
        dsn, options = split_url(url)
        behind_pooler = options.get("pgbouncer", "false").lower() in {"1", "true", "yes"}
        listen = None if behind_pooler else dsn
        if "listen" in options:
            listen, _ = split_url(options["listen"])
        try:
            pool = await _connect(dsn, pool_size=pool_size, behind_pooler=behind_pooler, allowed=migrate_schema)
        except ShiftworkError:
            raise
        except asyncpg.ProtocolViolationError as error:
            raise StoreUnsuitable(
                f"PostgreSQL says: {error}",
                mend="This looks like a pooler: add ?pgbouncer=true to the address, or name the server itself.",
            ) from error
        except (asyncpg.PostgresError, *_LOST, ValueError) as error:
            raise translate(error) from error
        store = cls(url, pool, listen, clock, dsn, behind_pooler=behind_pooler)
        if clock is None:
            try:
                await store._measure_clock()
            except (asyncpg.PostgresError, *_LOST) as error:
                await store.close()
                raise translate(error) from error
            store._background.append(asyncio.create_task(store._keep_clock()))
        return store

    # -- verbs -------------------------------------------------------------------------------------------------

    async def run(self, verb: Verb[T], /) -> T:
        return await self._run(verb, BEGIN)

    async def read(self, verb: Verb[T], /) -> T:
        return await self._run(verb, BEGIN_READING)

    async def _run(self, verb: Verb[T], begin: str) -> T:
        if self._closed:
            raise StoreClosed("this queue was closed")
        try:
            async with asyncio.timeout(self.operation_max_sec) as limit:
                return await self._run_until_done(verb, begin, limit)
        except TimeoutError:
            raise OperationTimeout(f"the database did not answer within {self.operation_max_sec:g} s") from None

    async def _run_until_done(self, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        deadlocks = 0
        gone_since: float | None = None
        while True:
            try:
                return await self._run_once(verb, begin, limit)
            except _AGAIN as error:
                deadlocks += 1
                if deadlocks >= DEADLOCK_TRIES:
                    raise StoreLocked(f"PostgreSQL says: {error}", mend="Try again.") from error
                await asyncio.sleep(random.uniform(0, 0.01 * 2**deadlocks))
            except _LOST as error:
                gone_since = gone_since or time.monotonic()
                self._note_absence()
                if self._closed or time.monotonic() - gone_since > RECONNECT_SEC:
                    raise translate(error) from error
                await asyncio.sleep(random.uniform(0.05, 0.2))
            except (asyncpg.PostgresError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]  # inside a task
                    raise
                raise translate(error) from error

    async def _run_once(self, verb: Verb[T], begin: str, limit: asyncio.Timeout) -> T:
        async with self._pool.acquire() as connection:
            tx = PostgresTx(connection, self._clock(), begin + self._each_time)
            try:
                result = await verb(tx)
                if tx.begun or self._each_time:
                    await tx.go_on()
            except BaseException as error:
                ours = isinstance(error, asyncpg.InterfaceError) and not connection.is_closed()
                await _roll_back(connection, tx)
                if ours:  # the driver was called wrongly: to try again would look like an outage
                    raise StoreError(f"the driver says: {error}") from error
                raise
            # From here on running out of time must not be told as "nothing was changed".
            left = max(0.01, (limit.when() or math.inf) - asyncio.get_running_loop().time())
            limit.reschedule(None)
            try:
                told = await self._commit(connection, tx, left)
            except asyncpg.ReadOnlySQLTransactionError:
                raise  # a standby: nothing was done there
            except _LOST as error:
                # The server may have committed: trying again could do it twice, so the caller must look.
                raise StoreUnavailable(
                    f"the connection broke during the commit: {error}",
                    mend="It is not known whether this was done; read the task before you try again.",
                ) from error
        if tx.wakes:
            self._announce(tx.wakes, told=told)
        return result

    async def _commit(self, connection: Any, tx: PostgresTx, left: float) -> bool:
        """True if other processes were told of the work in the same breath. A statement alone commits by itself."""
        if not tx.begun:
            await tx.flush(left)
            return False
        notice = self._notice(tx.wakes)
        try:
            await connection.execute("commit" + notice, timeout=left)
        except asyncpg.ProgramLimitExceededError as error:  # the commit has no such limit, the notice has
            log.info("a wake-up was not sent (%s); the poll finds the work", error)
        return bool(notice)

    def now(self) -> float:
        return self._clock()

    def unsettled_since(self) -> float:
        return max(self.wakes.unsettled_since, self._database_clock.jumped_at)

    def _note_absence(self) -> None:
        self.wakes.unsettled_since = self.now()

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
        if last:  # a program that submits and ends has told nobody yet
            await asyncio.wait(last, timeout=LAST_NOTICE_SEC)
        tasks = [*self._background, *last]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._messenger is not None:
            self._messenger.terminate()
        try:
            await asyncio.wait_for(self._pool.close(), 5)
        except (TimeoutError, OSError, asyncpg.PostgresError):
            self._pool.terminate()

    # -- clock -------------------------------------------------------------------------------------------------

    async def _measure_clock(self) -> None:
        async with self._pool.acquire() as connection:
            await self._database_clock.measure(connection)

    async def _keep_clock(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_EVERY_SEC)
            try:
                await self._measure_clock()
            except (asyncpg.PostgresError, *_LOST):
                self._note_absence()

    # -- wake-ups ----------------------------------------------------------------------------------------------

    def _notice(self, lanes: set[int]) -> str:
        """What tells other processes, to be sent with the commit: a round trip less. None soon after another."""
        if not lanes or not self._is_quiet():
            return ""
        self._notifier = asyncio.create_task(self._notify_others(NOTIFY_EVERY_SEC))
        return f"; {self._notify(lanes)}"

    def _announce(self, lanes: set[int], *, told: bool) -> None:
        """Tell who waits in this process; others are told now or, if it was quiet no longer, with the next notice."""
        self.wakes.announce(frozenset(lanes))
        if not told:
            self._to_notify |= lanes
            if self._is_quiet():
                self._notifier = asyncio.create_task(self._notify_others(0))

    def _is_quiet(self) -> bool:
        return self._notifier is None or self._notifier.done()

    def _notify(self, lanes: set[int]) -> str:
        # More than fit into a payload: an empty list, which means all of them.
        names = ",".join(str(lane) for lane in sorted(lanes)) if len(lanes) <= MOST_NOTIFIED else ""
        return f"notify {CHANNEL}, '{self._instance}:{names}'"  # digits and commas alone

    async def _notify_others(self, after_sec: float) -> None:
        """Tell of what came within a few milliseconds after a notice, folded."""
        await asyncio.sleep(after_sec)
        while self._to_notify:
            lanes, self._to_notify = self._to_notify, set()
            try:
                await self._send(self._notify(lanes))
            except (asyncpg.PostgresError, *_LOST) as error:
                log.info("a wake-up was not sent (%s); the poll finds the work", error)
            await asyncio.sleep(NOTIFY_EVERY_SEC)

    async def _send(self, notice: str) -> None:
        """On a connection of its own: the pool's would be missing for the call that comes next, and others are cold."""
        if self._listen_dsn is None or self._closed:
            async with self._pool.acquire() as connection:
                await connection.execute(notice)  # a plain message, no transaction behind a pooler
            return
        if self._messenger is None or self._messenger.is_closed():
            self._messenger = await asyncpg.connect(self._listen_dsn, timeout=CONNECT_SEC)
        await self._messenger.execute(notice)

    @asynccontextmanager
    async def lane_wakes(self) -> AsyncIterator[AsyncIterator[frozenset[int]]]:
        listener = asyncio.create_task(self._listen()) if self._listen_dsn else None
        try:
            async with self.wakes.subscribe() as stream:
                yield stream
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self) -> None:
        """Keep one direct connection listening; after each reconnect look at all lanes, since wakes were missed."""
        while True:
            lost = asyncio.Event()
            try:
                connection = await asyncpg.connect(self._listen_dsn, timeout=10)
                try:
                    connection.add_termination_listener(lambda _, lost=lost: lost.set())
                    await connection.add_listener(CHANNEL, self._heard)
                    self.wakes.announce(frozenset())
                    await lost.wait()
                finally:
                    connection.terminate()
            except (asyncpg.PostgresError, *_LOST) as error:
                log.info("not listening for wake-ups (%s); polling goes on", error)
            await asyncio.sleep(0.25)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        sender, _, lanes = str(payload).partition(":")
        if sender == self._instance:
            return
        known = [int(lane) for lane in lanes.split(",") if lane.isdigit()]
        self.wakes.announce(frozenset(known))


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """The driver's address, and the options that are ours: `pgbouncer` and `listen`."""
    parts = urlsplit(url)
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key in {"pgbouncer", "listen"}:
            ours[key] = unquote(value)
        else:
            theirs.append((key, value))
    if "," in parts.netloc and not any(key == "target_session_attrs" for key, _ in theirs):
        theirs.append(("target_session_attrs", "read-write"))  # several hosts: only the primary takes work
    return urlunsplit(parts._replace(query=urlencode(theirs))), ours


async def _keep(_connection: Any) -> None:
    """We leave no session state behind, so there is nothing to reset, and a round trip is saved."""


async def _set_up(connection: Any) -> None:
    """Ids are text on our side, as they are in SQLite. Binary, since COPY takes no other form."""
    async with connection.transaction():
        await connection.set_type_codec(
            "uuid", schema="pg_catalog", encoder=_uuid_to_bytes, decoder=_uuid_from_bytes, format="binary"
        )


@lru_cache(REMEMBERED)
def _uuid_to_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


@lru_cache(REMEMBERED)
def _uuid_from_bytes(raw: bytes) -> str:
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


async def _connect(dsn: str, *, pool_size: int, behind_pooler: bool, allowed: bool) -> Any:
    """A pool whose database has the schema."""
    async with asyncio.timeout(CONNECT_SEC):
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=pool_size,
            command_timeout=30,
            statement_cache_size=0 if behind_pooler else 512,
            server_settings={} if behind_pooler else SESSION,
            init=_set_up,
            reset=_keep,
        )
    try:
        if not await _is_current(pool):
            await _migrate(dsn, behind_pooler=behind_pooler, allowed=allowed)
    except BaseException:
        pool.terminate()
        raise
    return pool


async def _migrate(dsn: str, *, behind_pooler: bool, allowed: bool) -> None:
    """On a connection of its own: a migration may take longer than a verb may."""
    connection = await asyncpg.connect(dsn, timeout=CONNECT_SEC, statement_cache_size=0 if behind_pooler else 100)
    try:
        async with connection.transaction():
            if not allowed:
                migrate.refuse_unmigrated(migrate.missing("postgres", await _done(connection)))
            await connection.execute("select pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(migrate.LEDGER)
            for migration in migrate.missing("postgres", await _done(connection)):
                await connection.execute(migration.text)
                await connection.execute(
                    "insert into migrations values ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
    finally:
        await connection.close()


async def _is_current(pool: Any) -> bool:
    """True without writing anything, so that a role that may not create tables can open a migrated queue."""
    async with pool.acquire() as connection, connection.transaction():
        version = connection.get_server_version()
        if version.major < OLDEST_SERVER:
            raise StoreUnsuitable(f"PostgreSQL {version.major} is too old")
        return not migrate.missing("postgres", await _done(connection))


async def _done(connection: Any) -> list[tuple[int, str, str]]:
    """The migrations a database has had."""
    if await connection.fetchval("select to_regclass('migrations')") is None:
        return []
    return [tuple(row) for row in await connection.fetch("select number, name, checksum from migrations")]


async def _roll_back(connection: Any, tx: PostgresTx) -> None:
    """End the transaction; a server that does not even answer that has lost the connection."""
    if not tx.begun:
        return
    try:
        async with asyncio.timeout(ROLLBACK_SEC):
            await connection.execute("rollback")
    except (asyncpg.PostgresError, asyncio.CancelledError, *_LOST):
        # A cancellation is how early Pythons 3.11 tell a timeout inside another one; whoever called us raises on.
        connection.terminate()
