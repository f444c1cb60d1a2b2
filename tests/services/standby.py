"""A PostgreSQL standby that follows a primary and must have each commit before it is answered."""

import asyncio
import time
from typing import Self

import asyncpg

from tests.services.common import HOST, START_SECONDS, Sandbox, ServiceError, memory_is_roomy
from tests.services.postgres import Postgres, execute

STREAMING = "select 1 from pg_stat_replication where state = 'streaming' and sync_state = 'sync'"


class Standby(Postgres):
    """A standby of a primary, set up as an operator would; it takes over when promoted."""

    @classmethod
    def of(cls, primary: Postgres) -> Self:
        """Copy the primary, follow it, and let it wait for us with every commit from now on."""
        server = cls(
            primary.program, Sandbox("standby", last_signal="QUIT", memory=memory_is_roomy()), {"fsync": "off"}
        )
        server._copy(primary)
        server.start_first()
        execute(primary.dsn(), "alter system set synchronous_standby_names = '*'")
        execute(primary.dsn(), "select pg_reload_conf()")
        server._until_followed(primary)
        return server

    def promote(self) -> None:
        """Promote it, as tools such as Patroni do; return when it accepts writes."""
        execute(self.dsn(), "select pg_promote(true, 60)")

    def _copy(self, primary: Postgres) -> None:
        folder = str(self.sandbox.data)
        login = ["-h", HOST, "-p", str(primary.port), "-U", "postgres"]
        how = ["-D", folder, "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        self.sandbox.run(self.program, [self.program.beside("pg_basebackup"), *login, *how])

    def _until_followed(self, primary: Postgres) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not asyncio.run(_answers(primary.dsn(), STREAMING)):
            if time.monotonic() > deadline:
                raise ServiceError(f"the standby does not follow its primary:\n{self._log_tail()}")
            time.sleep(0.02)


async def _answers(dsn: str, sql: str) -> bool:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return bool(await connection.fetch(sql))
    finally:
        await connection.close()
