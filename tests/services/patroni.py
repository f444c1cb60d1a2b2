"""PostgreSQL under Patroni with etcd and HAProxy, configured by the files of deploy/patroni."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.services.common import HOST, Sandbox, Server, ServiceError, free_port, memory_is_roomy
from tests.services.postgres import WANTED as POSTGRES
from tests.services.postgres import execute
from tests.services.programs import FETCHED, REPOSITORY, Wanted, fetching, find

ETCD = Wanted(component="etcd", variable="SHIFTWORK_TEST_ETCD", names=("etcd",), debian="etcd-server")
HAPROXY = Wanted(
    component="HAProxy", variable="SHIFTWORK_TEST_HAPROXY", names=("haproxy",), debian="haproxy", says_version="-v"
)
FILES = REPOSITORY / "deploy" / "patroni"
PASSWORD = "of-the-tests"  # of a server on loopback that ends with the test
NAMES = ("db1", "db2", "db3")
START_SECONDS = 120.0


class Etcd(Server):
    """A single member, since only database machines fail in these tests."""

    def __init__(self) -> None:
        super().__init__(find(ETCD), Sandbox("etcd", last_signal="TERM", memory=memory_is_roomy()))
        self._peer_port = free_port()

    def command(self) -> Sequence[str]:
        clients, peers = f"http://{HOST}:{self.port}", f"http://{HOST}:{self._peer_port}"
        return [
            *[str(self.program.file), "--data-dir", str(self.sandbox.data), "--log-level", "warn"],
            *["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers],
            *["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"],
        ]

    def ready(self) -> bool:
        return fetch_json(f"http://{HOST}:{self.port}/health") is not None


class Node(Server):
    """A database machine: Patroni and its PostgreSQL."""

    def __init__(self, name: str, etcd_port: int) -> None:
        super().__init__(find(POSTGRES), Sandbox(f"patroni-{name}", last_signal="TERM", memory=memory_is_roomy()))
        self.name = name
        self.api_port = free_port()
        self.etcd_port = etcd_port
        self.public_port, self.public_api_port = self.port, self.api_port
        """Where the others connect to; a test can put a relay there."""
        self._patroni = self._find_patroni()

    def _find_patroni(self) -> list[str]:
        """The command that starts it. It is apart from the environment of the tests, with what it needs.

        As root, PostgreSQL and Patroni run as another user, who may not be allowed to run the Python of the tests.
        """
        for python in (sys.executable, "/usr/bin/python3"):
            with suppress(OSError, ServiceError):
                self.sandbox.run(self.program, [python, "-c", ""])
                tree = _fetch_patroni(python)
                command = ["env", f"PYTHONPATH={tree}", python, "-m", "patroni"]
                self.sandbox.run(self.program, [*command, "--version"])
                return command
        raise ServiceError(
            f"Neither {sys.executable} nor /usr/bin/python3 can run Patroni as {self.sandbox.user or 'you'}:"
            " install Python and keep the repository where everyone may read."
        )

    def command(self) -> Sequence[str]:
        environment = {
            "NAME": self.name,
            "ETCD3_HOST": f"{HOST}:{self.etcd_port}",
            "ETCD3_USE_PROXIES": "true",  # else it asks etcd for its own address and goes around a relay
            "RESTAPI_LISTEN": f"{HOST}:{self.api_port}",
            "RESTAPI_CONNECT_ADDRESS": f"{HOST}:{self.public_api_port}",
            "POSTGRESQL_LISTEN": f"{HOST}:{self.port}",
            "POSTGRESQL_CONNECT_ADDRESS": f"{HOST}:{self.public_port}",
            "POSTGRESQL_DATA_DIR": str(self.sandbox.data / "data"),
            "POSTGRESQL_BIN_DIR": str(self.program.file.parent),
            "POSTGRESQL_PGPASS": str(self.sandbox.folder / "pgpass"),
            "SUPERUSER_USERNAME": "postgres",
            "SUPERUSER_PASSWORD": PASSWORD,
            "REPLICATION_USERNAME": "replicator",
            "REPLICATION_PASSWORD": PASSWORD,
            "REWIND_USERNAME": "rewind",
            "REWIND_PASSWORD": PASSWORD,
        }
        # Patroni is killed here, and an armed watchdog would then restart the machine of the developer.
        before, mode, after = (FILES / "patroni.yml").read_text().partition("mode: automatic")
        assert mode
        file = self.sandbox.give("patroni.yml", f"{before}mode: off{after}")
        return [
            *self._patroni[:2],
            *(f"PATRONI_{key}={value}" for key, value in environment.items()),
            *self._patroni[2:],
            str(file),
        ]

    def ready(self) -> bool:
        return fetch_json(f"http://{HOST}:{self.api_port}/readiness") is not None

    def kill9(self) -> None:
        """All processes at once, as when a machine dies. PostgreSQL has left Patroni's process group."""
        while pids := self._processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().kill9()

    def stop(self) -> None:
        self.kill9()

    def _processes(self) -> list[int]:
        """Return the processes that work in its folders."""
        folders = (self.sandbox.folder, self.sandbox.data)
        found = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if any(link.readlink().is_relative_to(folder) for folder in folders):
                    found.append(int(link.parent.name))
        return found


class HaProxy(Server):
    """Passes connections to the primary."""

    says_version = HAPROXY.says_version

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(find(HAPROXY), Sandbox("haproxy", last_signal="TERM"))
        self._nodes = nodes

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@{HOST}:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        environment = [f"LISTEN={HOST}:{self.port}"]
        for node in self._nodes:
            name = node.name.upper()
            environment += [f"{name}={HOST}:{node.public_port}", f"{name}_PATRONI_PORT={node.public_api_port}"]
        file = self.sandbox.give("haproxy.cfg", (FILES / "haproxy.cfg").read_text())
        return ["env", *environment, str(self.program.file), "-db", "-f", str(file)]

    def ready(self) -> bool:
        """Whether it has found the primary."""
        try:
            execute(self.dsn, "SELECT 1")
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        return True


def _fetch_patroni(python: str) -> Path:
    """Its wheels for this Python, in a folder of their own."""
    tree = FETCHED / "wheels" / ("patroni" if python == sys.executable else "patroni-system")
    with fetching(tree) as fresh:
        if fresh is not None:
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check"]
            chosen = ["-c", str(REPOSITORY / "constraints.txt"), "--target", str(fresh), "patroni[etcd3,psycopg3]"]
            done = subprocess.run([*pip, *chosen], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ServiceError(f"The tests need Patroni, which pip could not fetch: {done.stderr.strip()[-300:]}")
    return tree


def fetch_json(url: str) -> Any:
    """The answer, or None if there is none or it is an error."""
    with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # on loopback
        return json.loads(answer.read() or b"{}")
    return None


def roles(nodes: Sequence[Node]) -> dict[str, str]:
    """Ask these members in turn for the role of each running member of the cluster."""
    for node in nodes:
        if seen := fetch_json(f"http://{HOST}:{node.api_port}/cluster"):
            running = [member for member in seen["members"] if member["state"] in {"running", "streaming"}]
            return {member["name"]: member["role"] for member in running}
    return {}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"after {START_SECONDS:g} s there is still no {what}")
        time.sleep(0.05)
