"""A private PgBouncer in transaction mode with its strict defaults, as at a user's."""

import socket
from collections.abc import Sequence
from typing import Self

from tests.services.common import HOST, Sandbox, Server
from tests.services.postgres import Databases
from tests.services.programs import Program, Wanted, find

WANTED = Wanted(
    component="PgBouncer",
    variable="SHIFTWORK_TEST_PGBOUNCER",
    names=("pgbouncer",),
    debian="pgbouncer",
)

_CONFIG = """
[databases]
* = host={host} port={server_port} user={user}{password}

[pgbouncer]
listen_addr = {address}
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
"""


class PgBouncer(Server):
    """Stands between the tests and one PostgreSQL server, for all its databases."""

    def __init__(self, program: Program, postgres: Databases) -> None:
        super().__init__(program, Sandbox("pgbouncer", last_signal="TERM"))
        self._postgres = postgres

    @classmethod
    def start(cls, postgres: Databases) -> Self:
        return cls(find(WANTED), postgres).start_first()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://{self._postgres.user}@{HOST}:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        password = self._postgres.password
        config = _CONFIG.format(
            host=self._postgres.host,
            server_port=self._postgres.port,
            user=self._postgres.user,
            password=f" password={password}" if password else "",
            address=HOST,
            port=self.port,
            users=self.sandbox.give("users", f'"{self._postgres.user}" ""\n'),
        )
        return [str(self.program.file), str(self.sandbox.give("pgbouncer.ini", config))]

    def ready(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=5).close()
        except OSError:
            return False
        return True
