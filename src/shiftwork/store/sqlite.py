"""SQLite: one writer thread that runs many verbs to a transaction, a savepoint each, and a few readers.

A verb is the same coroutine function that PostgreSQL awaits; here it is run straight through, since its `tx` never
suspends. Nothing is answered before COMMIT has returned.
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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import msgspec

from shiftwork.model.errors import (
    BadText,
    InputError,
    OperationTimeout,
    ShiftworkError,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsuitable,
)
from shiftwork.store import deadline, files, migrate, sqlite_joining, statements
from shiftwork.store.hearing import StallDetector
from shiftwork.store.sqlite_job import UNKNOWN, Job
from shiftwork.store.store import Clock, Row, Verb
from shiftwork.store.wakes import LocalWakes

T = TypeVar("T")
Item = TypeVar("Item")

GROUP = 256
"""Verbs to one commit. Larger groups gain nothing and make the first caller wait."""

AT_ONCE = 32
"""Rows in one insert: a step of the engine for each row takes half as long again (12 against 7.6 us a task)."""

READERS = 2
OLDEST_ENGINE = (3, 51, 3)
"""Before it, several writing connections could corrupt a WAL database."""

FOREIGN_POLL_SEC = 0.02
"""How often to check whether other processes have reported work, where the system does not say that they did."""

TOLD_POLL_SEC = 1.0
"""The same where it does."""

_ERRORS: tuple[tuple[type[apsw.Error], type[StoreError]], ...] = (
    (apsw.FullError, StoreFull),
    (apsw.ReadOnlyError, StoreReadOnly),
    (apsw.BusyError, StoreLocked),
    (apsw.LockedError, StoreLocked),
    (apsw.NotADBError, StoreDamaged),
    (apsw.CorruptError, StoreDamaged),
    (apsw.PermissionsError, StoreReadOnly),
    (apsw.CantOpenError, StoreUnavailable),
    (apsw.IOError, StoreUnavailable),
)
_ENCODE = msgspec.json.Encoder().encode


def translate(error: apsw.Error | UnicodeDecodeError, where: str | None = None) -> StoreError:
    """The queue's own error for what the engine said, or for text of a row that its driver cannot read."""
    if isinstance(error, UnicodeDecodeError):
        return StoreDamaged(f"a row holds text that is not UTF-8: {error}", where=where)
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"SQLite: {error}", where=where)
    return StoreError(f"SQLite: {error}", where=where)


class SqliteTx:
    """A transaction on one connection; its coroutines never suspend."""

    def __init__(self, connection: apsw.Connection, now: float) -> None:
        self.now = now
        self.wakes: set[int] = set()
        self.ended: set[str] = set()
        self.tells_end = False
        self._connection = connection
        self._statements = statements.load("sqlite")
        self._names: dict[str, tuple[str, ...]] = {}

    async def all(self, name: str, /, **parameters: Any) -> Sequence[Row]:
        statement = self._statements[name]
        for table in statement.tables:
            parameters[table] = _ENCODE(parameters[table]).decode()
        cursor = self._connection.cursor()
        with _plain_values():
            cursor.execute(statement.text, parameters)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            return []
        try:
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except UnicodeDecodeError as error:
            cursor.close(force=True)  # what it has not read to its end would keep this connection from writing
            raise translate(error) from error

    async def one(self, name: str, /, **parameters: Any) -> Row | None:
        rows = await self.all(name, **parameters)
        return rows[0] if rows else None

    async def run(self, name: str, /, **parameters: Any) -> None:
        await self.all(name, **parameters)

    async def insert(self, name: str, rows: Sequence[tuple[Any, ...]], /) -> None:
        statement, cursor = self._statements[name], self._connection.cursor()
        whole = len(rows) - len(rows) % AT_ONCE
        with _plain_values():
            if whole:
                many = (tuple(chain.from_iterable(rows[n : n + AT_ONCE])) for n in range(0, whole, AT_ONCE))
                cursor.executemany(_several(statement.text, len(statement.columns), AT_ONCE), many)
            if whole < len(rows):
                cursor.executemany(statement.text, rows[whole:])

    async def advisory_lock(self, name: str, /) -> None:
        """One writer at a time is the rule here anyway."""

    def wake(self, lane: int, /) -> None:
        self.wakes.add(lane)

    def announce_end(self, ended: str, /, *, to_others: bool = True) -> None:
        self.ended.add(ended)
        self.tells_end = self.tells_end or to_others


@cache
def _several(text: str, columns: int, rows: int) -> str:
    marks = f"({', '.join('?' for _ in range(columns))})"
    return text.replace(marks, ", ".join([marks] * rows))


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
        cls, path: str, *, clock: Clock = time.time, patience: float = 10.0, migrate_schema: bool = True
    ) -> SqliteStore:
        """Open the file, making it and its schema where they do not exist."""
        file = None if path == ":memory:" else Path(path).absolute()  # noqa: ASYNC240  # asks for the current folder alone
        connection = await asyncio.to_thread(_open_writer, path, file, patience, migrate_schema=migrate_schema)
        try:
            return cls(f"sqlite:///{path}", connection, file, clock, patience)
        except StoreError:  # the file of turns cannot be used
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
        caller = sqlite_joining.adapt(connection, self._path)
        tx = SqliteTx(caller, self._clock())
        try:
            result = await sqlite_joining.run_through(caller, lambda: _run_through(verb, tx))
        except apsw.Error as error:
            raise translate(error, str(self._path)) from error
        if tx.wakes or tx.ended:
            sqlite_joining.call_at_commit(caller, functools.partial(self._wake_soon, tx))
        return cast(T, result)

    def _wake_soon(self, joined: SqliteTx) -> None:
        """Called as a caller's transaction commits. Our next one waits for that, and its end tells everyone."""

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
    def hears_endings(self) -> bool:
        return True

    def endings(self) -> AbstractAsyncContextManager[AsyncIterator[frozenset[str]]]:
        return self._announced("ends", self.ends)

    @asynccontextmanager
    async def _announced(
        self, news: files.News, wakes: LocalWakes[Item]
    ) -> AsyncIterator[AsyncIterator[frozenset[Item]]]:
        watcher = None
        if self._turn is not None:  # from now on: what was told before is in sight of anyone who looks after this
            known = self._turn.told_by_others(news)
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
        """Other processes do not say which lanes got work or what ended, so every waiter is woken."""
        assert self._path is not None
        changes = files.FileChanges(files.turn_of(self._path))
        try:
            while not self._closed:
                count = turn.told_by_others(news)
                if count > known:
                    known = count
                    wakes.announce(frozenset())
                await changes.wait(TOLD_POLL_SEC if changes.supported else FOREIGN_POLL_SEC)
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
                self._run_group(group)
                _deliver(group)
        except BaseException as error:  # noqa: BLE001  # a dead writer must fail its waiters, whatever killed it
            self._broken = error
            self._fail_waiters(group or [], error)

    def _next_group(self) -> list[Job] | None:
        """Wait for work, then take all that has come; None when the store closes."""
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

    def _run_group(self, group: list[Job]) -> None:
        try:
            with self._turn or contextlib.nullcontext():
                self._run_verbs(group)
                lanes = frozenset(lane for job in group if job.error is None for lane in job.wakes)
                ended = frozenset(end for job in group if job.error is None for end in job.ended)
                if self._turn is not None:
                    if lanes:
                        self._turn.tell("work")
                    if any(job.tells_end for job in group if job.error is None):
                        self._turn.tell("ends")
        except ShiftworkError as error:
            for job in group:
                job.error = error
        except OSError as error:
            for job in group:
                job.error = StoreUnavailable(f"the writers' turn cannot be taken: {error}")
        else:
            self._announce(group[0].loop, self.wakes, lanes)
            self._announce(group[0].loop, self.ends, ended)

    def _run_verbs(self, group: list[Job]) -> None:
        if not self._try_together(group):
            for job in group:
                self._run_alone(job)

    def _try_together(self, group: list[Job]) -> bool:
        """One transaction for the group. False when the transaction was lost: then nothing of it is in the file.

        A full disk or an interrupt ends the transaction, not the savepoint; a neighbour's "ok" would be a lie.
        """
        if len(group) == 1:
            self._run_alone(group[0])
            return True
        connection = self._connection
        try:
            connection.execute("begin immediate")
        except apsw.Error as error:  # nothing has begun: each alone would only wait as long again
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
            connection.execute("commit")
        except apsw.Error:
            self._roll_back()
            return False
        return True

    def _run_alone(self, job: Job) -> None:
        try:
            self._connection.execute("begin immediate")
            self._attempt(job)
            if job.error is None:
                self._connection.execute("commit")
        except apsw.Error as error:
            job.error = translate(error)
        finally:
            self._roll_back()

    def _attempt(self, job: Job) -> None:
        """Run the verb once and note its answer; whatever it raises is the job's, not the thread's."""
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

    def _announce(self, loop: asyncio.AbstractEventLoop, wakes: LocalWakes[Item], items: frozenset[Item]) -> None:
        if items:
            with contextlib.suppress(RuntimeError):  # a loop that has gone: the poll repairs it
                loop.call_soon_threadsafe(wakes.announce, items)

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


@contextlib.contextmanager
def _plain_values() -> Iterator[None]:
    """What the driver cannot write is the caller's mistake, not the store's."""
    try:
        yield
    except UnicodeEncodeError:
        raise BadText("text holds a lone surrogate") from None
    except OverflowError as error:
        raise InputError(f"a number is too large: {error}") from None


def _deliver(group: list[Job]) -> None:
    """Hand all answers over in one call per loop."""
    for loop in {job.loop for job in group}:
        jobs = [job for job in group if job.loop is loop]
        try:
            loop.call_soon_threadsafe(lambda jobs=jobs: [job.deliver() for job in jobs])  # type: ignore[misc]  # mypy cannot type the default
        except RuntimeError:
            continue  # that loop has gone, and its callers with it


def _run_through(verb: Callable[[Any], Any], tx: SqliteTx) -> Any:
    """Run a coroutine that never suspends. One that does has awaited something else than `tx`: a bug.

    What callers send is read before it comes here: JSON that cannot be decoded comes from a row.
    """
    coroutine = cast(Coroutine[Any, Any, Any], verb(tx))
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except msgspec.ValidationError:
        raise  # it is JSON, so the disk has kept what was written
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"a row holds what is not JSON: {error}") from error
    coroutine.close()
    raise RuntimeError("a verb can only await its transaction")


def _open_writer(path: str, file: Path | None, patience: float, *, migrate_schema: bool) -> apsw.Connection:
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < OLDEST_ENGINE:
        raise StoreUnsuitable(f"SQLite {apsw.sqlite_lib_version()} can corrupt a file that several processes write")
    if file is not None:
        _refuse_unwritable(str(file))
        try:
            _check_place(file)
        except OSError as error:  # a folder on the way that may not be entered
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
    """The engine takes names in UTF-8 alone, and a NUL would end one early."""
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
    """A file with tables of something else is left exactly as it is."""
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


def _migrate(connection: apsw.Connection, *, allowed: bool) -> None:
    """Bring the schema up to date, one process at a time."""
    if _is_current(connection):
        return
    connection.execute("begin immediate")
    try:
        connection.execute(migrate.LEDGER)
        done = list(connection.execute("select number, name, checksum from migrations order by number"))
        needed = migrate.missing("sqlite", cast("list[tuple[int, str, str]]", done))
        if not allowed:
            migrate.refuse_unmigrated(needed)
        for migration in needed:
            for statement in migrate.statements_of(migration.text):
                connection.execute(statement)
            connection.execute(
                "insert into migrations values (?, ?, ?)",
                (migration.number, migration.name, migration.checksum),
            )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _is_current(connection: apsw.Connection) -> bool:
    """True without writing anything. A file that is newer than this program is refused here."""
    if not list(connection.execute("select 1 from sqlite_schema where name = 'migrations'")):
        return False
    done = list(connection.execute("select number, name, checksum from migrations"))
    return not migrate.missing("sqlite", cast("list[tuple[int, str, str]]", done))
