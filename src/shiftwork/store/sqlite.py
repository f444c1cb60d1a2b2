"""SQLite: one writer thread that runs many verbs to a transaction, a savepoint each, and a few readers.

Verbs are the same coroutine functions that PostgreSQL awaits; here they run straight through, because `tx` never
suspends. No answer is given before COMMIT has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import msgspec

from shiftwork.model.errors import (
    BadText,
    OperationTimeout,
    ShiftworkError,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsuitable,
)
from shiftwork.store import crash_points, deadline, files, migrate, sqlite_callers_transaction
from shiftwork.store.sqlite_job import UNKNOWN, Job
from shiftwork.store.sqlite_tx import SqliteTx, translate
from shiftwork.store.stalls import StallDetector
from shiftwork.store.store import Clock, Verb
from shiftwork.store.wakes import LocalWakes

T = TypeVar("T")
Item = TypeVar("Item")

GROUP = 256
"""Verbs per commit. Larger groups gain nothing and delay the first caller."""

READERS = 2
OLDEST_ENGINE = (3, 51, 3)
"""Earlier versions could corrupt a WAL database with several writers."""

FOREIGN_POLL_SEC = 0.02
"""How often to check for work announced by other processes, on systems without file notifications."""

NOTIFIED_POLL_SEC = 1.0
"""The same on systems with them."""


class SqliteStore:
    """A queue in one file on a local disk."""

    one_writer = True

    def __init__(self, url: str, connection: apsw.Connection, path: Path | None, clock: Clock, patience: float) -> None:
        self.url = url
        self.wakes: LocalWakes[int] = LocalWakes()
        self.ends: LocalWakes[str] = LocalWakes()
        self.operation_max_sec = 30.0
        self.refusal: ShiftworkError | None = None
        self._connection = connection
        self._path = path
        self._clock = clock
        self.stall_detector = StallDetector(clock, watches_clock=clock is time.time)
        self._turn = files.WriterLock(path, patience) if path else None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._broken: BaseException | None = None
        self._readers = ThreadPoolExecutor(READERS, "shiftwork-reader") if path else None
        self._reader = threading.local()
        self._opened_readers: list[apsw.Connection] = []
        self._thread = threading.Thread(target=self._work, name="shiftwork-writer", daemon=True)
        self._thread.start()

    @classmethod
    async def open(
        cls, path: str, *, clock: Clock = time.time, patience: float = 10.0, migrate_schema: migrate.Allowed = True
    ) -> SqliteStore:
        """Open the file; creates it and its schema if needed."""
        file = None if path == ":memory:" else Path(path).absolute()  # noqa: ASYNC240  # only reads the current folder
        connection = await asyncio.to_thread(_open_writer, path, file, patience, migrate_schema=migrate_schema)
        try:
            return cls(f"sqlite:///{path}", connection, file, clock, patience)
        except StoreError:  # the turn file cannot be used
            connection.close()
            raise

    async def run(self, verb: Verb[T], /) -> T:
        self._refuse_if_down()
        job = Job(verb, asyncio.get_running_loop())
        self._jobs.put(job)
        try:
            return cast(T, await self._answer(job))
        except (StoreFull, StoreReadOnly) as error:
            self.refusal = error
            raise

    async def run_on(self, connection: Any, verb: Verb[T], /) -> T:
        self._refuse_if_down()
        caller = sqlite_callers_transaction.adapt(connection, self._path)
        tx = SqliteTx(caller, self._clock())
        try:
            result = await sqlite_callers_transaction.run_through(caller, lambda: _run_through(verb, tx))
        except apsw.Error as error:
            raise translate(error, str(self._path)) from error
        if tx.wakes or tx.ended:
            sqlite_callers_transaction.call_at_commit(caller, functools.partial(self._wake_soon, tx))
        return cast(T, result)

    def _wake_soon(self, joined: SqliteTx) -> None:
        """Called as a caller's transaction commits. Our next one waits for that, and its end announces both."""

        async def wake(tx: SqliteTx) -> None:
            tx.wakes, tx.ended, tx.tells_end = joined.wakes, joined.ended, joined.tells_end

        if not self._closed:
            self._jobs.put(Job(cast(Any, wake), self._loop))

    async def _answer(self, job: Job) -> Any:
        left = deadline.left(self.operation_max_sec)
        limit = job.loop.call_later(left, job.give_up, left)
        try:
            return await job.future
        finally:
            limit.cancel()

    async def read(self, verb: Verb[T], /) -> T:
        if self._readers is None:
            return await self.run(verb)
        self._refuse_if_down()
        context = contextvars.copy_context()
        reading = asyncio.get_running_loop().run_in_executor(self._readers, lambda: context.run(self._read, verb))
        left = deadline.left(self.operation_max_sec)
        try:
            async with asyncio.timeout(left):
                return await reading
        except TimeoutError:
            raise OperationTimeout(f"the file was not read within {left:.3g} s") from None

    async def read_in_turn(self, verb: Verb[T], /) -> T:
        return await self.run(verb)

    def _read(self, verb: Verb[T]) -> T:
        try:
            connection = self._reader_connection()
            connection.execute("begin")
            try:
                return cast(T, _run_through(verb, SqliteTx(connection, self._clock())))
            finally:
                connection.execute("rollback")
        except apsw.Error as error:
            raise translate(error) from error

    def _reader_connection(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._reader, "connection", None)
        if connection is None:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
            connection.set_busy_timeout(10_000)
            self._reader.connection = connection
            self._opened_readers.append(connection)
        return connection

    def now(self) -> float:
        return self._clock()

    async def settle_events(self) -> None:
        """One writer: events become visible in the order of their numbers."""

    def lane_wakes(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[int]]]:
        return self._announced("work", self.wakes)

    @property
    def announces_ends(self) -> bool:
        return True

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return self._announced("ends", self.ends)

    @asynccontextmanager
    async def _announced(
        self, news: files.News, wakes: LocalWakes[Item]
    ) -> AsyncIterator[AsyncIterator[frozenset[Item]]]:
        watcher = None
        if self._turn is not None:  # from now on: anything announced earlier is visible to later reads
            known = self._turn.announced_by_others(news)
            watcher = asyncio.create_task(self._watch_other_processes(self._turn, news, known, wakes))
        try:
            async with wakes.subscribe() as stream:
                yield stream
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _watch_other_processes(
        self, turn: files.WriterLock, news: files.News, known: int, wakes: LocalWakes[Item]
    ) -> None:
        """Wake every waiter: other processes do not say which lanes got work or what ended."""
        assert self._path is not None
        changes = files.FileChanges(files.turn_of(self._path))
        try:
            while not self._closed:
                count = turn.announced_by_others(news)
                if count > known:
                    known = count
                    wakes.announce(frozenset())
                await changes.wait(NOTIFIED_POLL_SEC if changes.supported else FOREIGN_POLL_SEC)
        finally:
            changes.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._readers is not None:
            await asyncio.to_thread(self._readers.shutdown)
        for connection in self._opened_readers:
            connection.close()
        self._connection.close()
        if self._turn is not None:
            self._turn.close()

    def _refuse_if_down(self) -> None:
        if self._broken is not None:
            raise StoreUnavailable(f"the writer has stopped: {self._broken}") from self._broken
        if self._closed:
            raise StoreClosed("this queue was closed")

    def _work(self) -> None:
        group: list[Job] | None = []
        try:
            while (group := self._next_group()) is not None:
                lanes, ended = self._run_group(group)
                _deliver(group, functools.partial(self._announce, lanes, ended) if lanes or ended else None)
        except BaseException as error:  # noqa: BLE001  # a dead writer must fail its waiters, whatever killed it
            self._broken = error
            self._fail_waiters(group or [], error)

    def _next_group(self) -> list[Job] | None:
        """Wait for work, then take everything queued; None when the store closes."""
        group: list[Job] = []
        job = self._jobs.get()
        while True:
            if job is None:
                if not group:
                    return None
                self._jobs.put(None)
                return group
            group.append(job)
            if len(group) >= GROUP:
                return group
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group

    def _run_group(self, group: list[Job]) -> tuple[frozenset[int], frozenset[str]]:
        """Run the verbs; returns the lanes that got work and what ended."""
        try:
            with self._turn or contextlib.nullcontext():
                self._run_verbs(group)
                done = [job for job in group if job.error is None]
                lanes = frozenset(lane for job in done for lane in job.wakes)
                ended = frozenset(end for job in done for end in job.ended)
                if self._turn is not None:
                    if lanes:
                        _reach("before announcing", done)
                        self._turn.tell("work")
                    if any(job.tells_end for job in done):
                        self._turn.tell("ends")
        except ShiftworkError as error:
            for job in group:
                job.error = error
        except OSError as error:
            for job in group:
                job.error = StoreUnavailable(f"the writers' turn cannot be taken: {error}")
        else:
            return lanes, ended
        return frozenset(), frozenset()

    def _run_verbs(self, group: list[Job]) -> None:
        if not self._try_together(group):
            for job in group:
                self._run_alone(job)

    def _try_together(self, group: list[Job]) -> bool:
        """Run the group in one transaction. False if the transaction was lost: then nothing was written.

        A full disk or an interrupt ends the transaction, not the savepoint; a neighbour's "ok" would be a lie.
        """
        if len(group) == 1:
            self._run_alone(group[0])
            return True
        connection = self._connection
        try:
            connection.execute("begin immediate")
        except apsw.Error as error:  # nothing has begun: running each alone would only wait as long again
            raise translate(error) from error
        try:
            for job in group:
                connection.execute("savepoint verb")
                self._attempt(job)
                if not connection.in_transaction:
                    return False
                if job.error is not None:
                    connection.execute("rollback to verb")
                connection.execute("release verb")
            _reach("before commit", group)
            connection.execute("commit")
            _reach("after commit", group)
        except apsw.Error:
            self._roll_back()
            return False
        return True

    def _run_alone(self, job: Job) -> None:
        try:
            self._connection.execute("begin immediate")
            self._attempt(job)
            if job.error is None:
                _reach("before commit", [job])
                self._connection.execute("commit")
                _reach("after commit", [job])
        except apsw.Error as error:
            job.error = translate(error)
        finally:
            self._roll_back()

    def _attempt(self, job: Job) -> None:
        """Run the verb once and record its answer; any exception belongs to the job, not to the thread."""
        if not job.begin():
            return
        tx = SqliteTx(self._connection, self._clock())
        job.error = job.result = None
        try:
            job.result = job.context.copy().run(_run_through, job.verb, tx)
            job.end()
            job.wakes, job.ended, job.tells_end = tx.wakes, tx.ended, tx.tells_end
        except apsw.Error as error:
            job.error = translate(error)
        except BaseException as error:  # noqa: BLE001  # SystemExit or CancelledError in a verb is that caller's
            job.error = error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("rollback")

    def _announce(self, lanes: frozenset[int], ended: frozenset[str]) -> None:
        if lanes:
            self.wakes.announce(lanes)
        if ended:
            self.ends.announce(ended)

    def _fail_waiters(self, begun: list[Job], error: BaseException) -> None:
        for job in begun:
            job.error = StoreUnavailable(
                f"the writer has stopped: {error}",
                hint=UNKNOWN,
            )
        left: list[Job] = []
        while not self._jobs.empty():
            job_left = self._jobs.get()
            if job_left is not None:
                job_left.error = StoreUnavailable(f"the writer has stopped: {error}")
                left.append(job_left)
        _deliver([*begun, *left])


def _deliver(group: list[Job], announce: Callable[[], None] | None = None) -> None:
    """Deliver all answers with one call per loop, and the announcements with the first: waking a loop costs the
    most.
    """
    for loop in dict.fromkeys(job.loop for job in group):
        jobs = [job for job in group if job.loop is loop]
        with contextlib.suppress(RuntimeError):  # that loop is closed, with its callers; the poll finds the work
            loop.call_soon_threadsafe(_hand_over, jobs, announce)
        announce = None


def _reach(what: str, group: list[Job]) -> None:
    """A crash point of each of these calls."""
    if crash_points.is_armed():
        for job in group:
            job.context.copy().run(crash_points.reach, what)


def _hand_over(jobs: list[Job], announce: Callable[[], None] | None) -> None:
    if announce is not None:
        announce()
    for job in jobs:
        job.deliver()


def _run_through(verb: Callable[[Any], Any], tx: SqliteTx) -> Any:
    """Run a coroutine that never suspends. If it does, it has awaited something other than `tx`: a bug.

    Callers' input is decoded earlier: JSON that fails to decode here comes from a row.
    """
    coroutine = cast(Coroutine[Any, Any, Any], verb(tx))
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except msgspec.ValidationError:
        raise  # it is JSON, so the disk has not damaged it
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"a row is not valid JSON: {error}") from error
    coroutine.close()
    raise RuntimeError("a verb can only await its transaction")


def _open_writer(path: str, file: Path | None, patience: float, *, migrate_schema: migrate.Allowed) -> apsw.Connection:
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < OLDEST_ENGINE:
        raise StoreUnsuitable(f"SQLite {apsw.sqlite_lib_version()} can corrupt a file that several processes write")
    if file is not None:
        _refuse_unwritable(str(file))
        try:
            _check_place(file)
        except OSError as error:  # a parent folder without access
            raise StoreUnavailable(f"{file} cannot be reached: {error.strerror}", where=str(file)) from error
    if file is not None and not file.exists():
        files.make_private(file)
    try:
        connection = apsw.Connection(path)
        try:
            connection.set_busy_timeout(int(patience * 1000))
            _refuse_foreign(connection)
            _prepare(connection)
            _migrate(connection, allowed=migrate_schema)
        except BaseException:
            connection.close()
            raise
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translate(error, path) from error
    return connection


def _refuse_unwritable(path: str) -> None:
    """Check the name: the engine accepts only UTF-8, and a NUL would cut it short."""
    if "\0" in path or path != path.encode(errors="ignore").decode():
        raise BadText(f"{path!r} is not a valid database name", where="url")


def _check_place(file: Path) -> None:
    if not file.parent.is_dir():
        raise StoreUnavailable(f"the folder {file.parent} does not exist", hint="Make the folder first.")
    if file.is_dir():
        raise StoreUnavailable(f"{file} is a folder", where=str(file), hint="Name a file, in it or elsewhere.")
    files.refuse_network_file_system(file.parent)
    if file.exists() and not os.access(file, os.W_OK):
        raise StoreReadOnly(f"{file} is not writable by this user", where=str(file))
    if not os.access(file.parent, os.W_OK):
        raise StoreReadOnly(f"the folder {file.parent} is not writable by this user", where=str(file.parent))


def _refuse_foreign(connection: apsw.Connection) -> None:
    """Refuse a file with tables of another program, leaving it untouched."""
    names = {row[0] for row in connection.execute("select name from sqlite_schema")}
    if names and "migrations" not in names:
        raise StoreUnsuitable("the file holds the tables of another program", hint="Name a file of its own.")


def _prepare(connection: apsw.Connection) -> None:
    if connection.pragma("journal_mode") not in {"wal", "memory"}:
        connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma("foreign_keys", 1)
    connection.pragma("temp_store", "memory")
    connection.pragma("cache_size", -65536)


def _migrate(connection: apsw.Connection, *, allowed: migrate.Allowed) -> None:
    """Bring the schema up to date, one process at a time."""
    contract = allowed == "contract"
    if not migrate.missing("sqlite", _done(connection), contract=contract):
        return
    connection.execute("begin immediate")
    try:
        connection.execute(migrate.LEDGER)
        needed = migrate.missing("sqlite", _done(connection), contract=contract)
        if not allowed:
            migrate.refuse_unmigrated(needed)
        for migration in needed:
            for statement in (*migrate.statements_of(migration.text), migrate.record(migration)):
                connection.execute(statement)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def read_done(path: Path) -> list[tuple[int, str, str]]:
    """The migrations applied to a file; none if there is no file."""
    if not path.exists():
        return []
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            _refuse_foreign(connection)
            return _done(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate(error, str(path)) from error


def _done(connection: apsw.Connection) -> list[tuple[int, str, str]]:
    if not list(connection.execute("select 1 from sqlite_schema where name = 'migrations'")):
        return []
    rows = list(connection.execute("select number, name, checksum from migrations order by number"))
    return cast("list[tuple[int, str, str]]", rows)
