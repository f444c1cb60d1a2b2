"""The processes of a run: a server, workers that use it, and workers directly on the database."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from shiftwork.prove.process import VARIABLE, Controls

SERVER = "server"


class Member:
    """One process that can be killed and restarted."""

    def __init__(self, name: str, arguments: list[str], url: str, folder: Path, controls: Controls) -> None:
        self.name = name
        self.controls = controls
        self._arguments = arguments
        self._log = folder / f"{name}.log"
        # Outboxes belong in the folder of the run, not in the user's.
        self._environment = {
            **os.environ, "SHIFTWORK_STORE": url, VARIABLE: str(controls.file), "XDG_STATE_HOME": str(folder / name),
        }  # fmt: skip
        for inherited in ("SHIFTWORK_WORKSPACE", "SHIFTWORK_TOKEN", "SHIFTWORK_TOKEN_FILE", "SHIFTWORK_ARTIFACTS"):
            self._environment.pop(inherited, None)
        self.process: asyncio.subprocess.Process | None = None
        self._changing = asyncio.Lock()
        """Ensures that it is restarted only once."""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "shiftwork.prove.process", *self._arguments,
                env=self._environment, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def replace(self) -> None:
        async with self._changing:
            await self.kill()
            await self.start()

    async def start_if_ended(self) -> bool:
        """Start it if it has ended; returns whether it had."""
        async with self._changing:
            if self.running:
                return False
            await self.start()
            return True

    async def kill(self) -> None:
        if self.process is not None:
            for number in (signal.SIGCONT, signal.SIGKILL):
                self.signal(number)
            await self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Fleet:
    """Half of the workers use the server, the others the database. A process that ends by itself is restarted."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members

    @property
    def controls(self) -> list[Controls]:
        """One for each clock."""
        return list({member.controls.file: member.controls for member in self.members}.values())

    async def supervise(self) -> None:
        while True:
            for member in self.members:
                await member.start_if_ended()
            await asyncio.sleep(0.25)


@asynccontextmanager
async def fleet_on(
    store: str, server: str, port: int, workers: int, folder: Path, *, one_clock: bool
) -> AsyncIterator[Fleet]:
    """Start a fleet on a store; its workers reach the server on `port` at the address `server`. Kill it afterwards.

    With `one_clock`, all processes share a clock; otherwise each has its own, as in a fleet of machines.
    """
    shared = Controls(folder / "controls")
    members = [Member(SERVER, ["serve", str(port)], store, folder, shared)]
    for number in range(workers):
        name = f"worker-{number}"
        controls = shared if one_clock else Controls(folder / f"controls-{number}")
        arguments = ["work", name, str(folder / "world")]
        members.append(Member(name, arguments, store if number % 2 else server, folder, controls))
    try:
        await asyncio.gather(*(member.start() for member in members))
        yield Fleet(members)
    finally:
        await asyncio.gather(*(member.kill() for member in members))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
