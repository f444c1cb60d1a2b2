"""`make prove` and `make soak`: both commands of the package, on a store of our own that may be restarted.

    python -m bench.endurance prove --store postgres --minutes 10
    python -m bench.endurance soak --store sqlite --minutes 60

PostgreSQL has a synchronous standby for `prove`, which takes over once. The other options are those of the command.
"""

from __future__ import annotations

import argparse
import shlex
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bench.stores import SERVER
from shiftwork.cli import main as command_line
from tests.services import Postgres
from tests.services.standby import Standby

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    server.sendall(sys.argv[2].encode() + b"\\n")
    sys.exit(server.recv(4) != b"done")
"""
"""What a command does: it asks this process, which has started the servers."""


@contextmanager
def sqlite() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="shiftwork-endurance-") as folder:
        yield ["--store", f"sqlite:///{folder}/queue.db"]


@contextmanager
def postgres() -> Iterator[list[str]]:
    with Postgres.start(durable=True, settings=SERVER) as server:
        yield ["--store", server.dsn()]


@contextmanager
def replicated() -> Iterator[list[str]]:
    """A primary and its standby: the options name both hosts, and the commands that restart and fail over."""
    with Postgres.start(durable=True, settings=SERVER) as primary, Standby.of(primary) as standby:
        serving: list[Postgres] = [primary]

        def restart() -> None:
            serving[0].kill9()
            serving[0].start_again()

        def fail_over() -> None:
            primary.kill9()
            standby.promote()
            serving[0] = standby

        hosts = f"{primary.host}:{primary.port},{standby.host}:{standby.port}"
        with commands({"restart": restart, "failover": fail_over}) as asked:
            options = [f"--{name}-command={command}" for name, command in asked.items()]
            yield ["--store", f"postgresql://postgres@{hosts}/postgres", *options]


@contextmanager
def commands(actions: Mapping[str, Callable[[], None]]) -> Iterator[dict[str, str]]:
    """A shell command for each action of this process; it ends when the action has."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            actions[self.rfile.readline().decode().strip()]()
            self.wfile.write(b"done")

    with tempfile.TemporaryDirectory(prefix="shiftwork-commands-") as folder:
        place = f"{folder}/socket"
        with socketserver.ThreadingUnixStreamServer(place, Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield {name: shlex.join([sys.executable, "-c", ASK, place, name]) for name in actions}
            finally:
                server.shutdown()


def main(what: str, *arguments: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    chosen, rest = parser.parse_known_args(arguments)
    place = sqlite if chosen.store == "sqlite" else replicated if what == "prove" else postgres
    with place() as options:
        command_line([*options[:2], what, *options[2:], *rest])


if __name__ == "__main__":
    main(*sys.argv[1:])
