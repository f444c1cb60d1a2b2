"""The processes of one command: started in a group of their own, identified by a mark, ended together."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec

from shiftwork.agents.known_process import Process, process_of

MARK = "SHIFTWORK_RUN"
"""The variable that all processes of a run inherit, so that those that left the group are found, too."""

LINGER_SEC = 1.0
"""After the command has ended, its child processes have this long to write their last output and end."""

OnOutput = Callable[[bytes], None]


class Run(msgspec.Struct, frozen=True):
    """The record of a run, to end it if its runner cannot."""

    mark: str
    leader: Process | None = None


def kill(run: Run) -> int:
    """Kill every process of a run; returns how many."""
    if run.leader is not None and process_of(run.leader.pid) == run.leader:
        signal_group(run.leader.pid, signal.SIGKILL)
    killed: set[int] = set()
    while left := [pid for pid in marked(run.mark) if pid not in killed]:  # one may have forked before it died
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
    return len(killed)


def marked(mark: str) -> list[int]:
    """Processes with this mark, if the system shows their environment. Dead ones have none."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class _Listener(asyncio.Protocol):
    """Passes a pipe's data to a callback."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output = on_output
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._on_output(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended.set()


class Group:
    """A running command. Its leader is not reaped before the group is ended: until then, its id cannot be reused."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str) -> None:
        self.run = Run(mark, process_of(leader.pid))
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._listeners: list[_Listener] = []
        self._transports: list[asyncio.BaseTransport] = []
        threading.Thread(target=self._watch, name="shiftwork-command", daemon=True).start()

    @classmethod
    def start(
        cls, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: Path | None, mark: str
    ) -> Group:
        """Its standard input is a file, which it may ignore; without one, `writer` feeds it."""
        with nullcontext(subprocess.PIPE) if stdin is None else stdin.open("rb") as given:
            leader = subprocess.Popen(
                arguments,
                cwd=folder,
                env={**environment, MARK: mark},
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        return cls(leader, mark)

    async def listen(self, stdout: OnOutput, stderr: OnOutput) -> None:
        """Start to read its output."""
        for pipe, on_output in ((self._leader.stdout, stdout), (self._leader.stderr, stderr)):
            transport, listener = await self._loop.connect_read_pipe(functools.partial(_Listener, on_output), pipe)
            self._listeners.append(listener)
            self._transports.append(transport)

    async def writer(self) -> asyncio.StreamWriter:
        """Writes to its standard input."""
        made, pipe = asyncio.streams.FlowControlMixin, self._leader.stdin
        transport, protocol = await self._loop.connect_write_pipe(made, pipe)
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, self._loop)

    def _watch(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._leader.wait()
        with suppress(RuntimeError):  # the loop is closed: no one waits any more
            self._loop.call_soon_threadsafe(self._exited.set)

    async def ended(self) -> None:
        """Wait until the command ends by itself."""
        await self._exited.wait()

    async def terminate(self, grace_sec: float) -> None:
        """Ask the whole group to end, and wait this long for the command."""
        signal_group(self._leader.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_sec):
                await self._exited.wait()

    async def reap(self) -> int:
        """Kill what is left of the run; returns the command's exit code."""
        try:
            if self._exited.is_set():
                await self._drain_pipes()
            signal_group(self._leader.pid, signal.SIGKILL)
            await asyncio.to_thread(kill, self.run)
            await self._exited.wait()
            await self._drain_pipes()
        finally:
            signal_group(self._leader.pid, signal.SIGKILL)
            for transport in self._transports:
                transport.close()
        return self._leader.wait()

    async def _drain_pipes(self) -> None:
        """Wait until both pipes are closed, or no more output can be expected."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SEC):
                for listener in self._listeners:
                    await listener.ended.wait()
