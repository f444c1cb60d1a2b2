"""Shared by all servers: a private folder, an unprivileged user, a free port, and a guaranteed end."""

import atexit
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.services.programs import Program, ServiceError

__all__ = ["HOST", "Sandbox", "Server", "ServiceError"]

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 30.0

MEMORY = Path("/dev/shm")  # noqa: S108 -- mkdtemp makes the name safe

# Reads a pipe that only the test process holds. A line means that all is done; the end of the pipe without a
# line means that the process was killed. Either way the folder and the rest of the process group go.
_WATCH = """
trap '' HUP INT TERM QUIT
if ! read -r word; then kill -s "$1" 0; sleep 1; fi
shift
rm -rf "$@"
kill -s KILL 0
"""


def unprivileged_user() -> str | None:
    """Return the user for servers that refuse to run as root; None means the current user."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ServiceError("As root the servers need an unprivileged user: add one named postgres or nobody.")


def memory_is_roomy() -> bool:
    """Return whether a memory-backed folder has room for the data of a run; many containers limit it to 64 MB."""
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30


def free_port() -> int:
    """A port no one listens on, below the range from which the kernel numbers outgoing connections.

    In that range a stopped server could lose its port to some client before it starts again.
    """
    choose = random.SystemRandom()
    for _ in range(100):
        port = choose.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServiceError(f"No free port was found on {HOST} between 20000 and 32000.")


class Sandbox:
    """A folder and a process group that end with this process, however it ends, SIGKILL included.

    Not the kernel's parent-death signal: it follows the thread that started the server, and tests start
    servers from threads that end.
    """

    def __init__(self, name: str, last_signal: str, *, memory: bool = False) -> None:
        self.user = unprivileged_user()
        # As root TMPDIR may be a folder that the unprivileged user cannot enter.
        parent = None if self.user is None else "/tmp"  # noqa: S108 -- mkdtemp makes the name safe
        self.folder = Path(tempfile.mkdtemp(prefix=f"shiftwork-{name}-", dir=parent))
        self.data = Path(tempfile.mkdtemp(prefix=f"shiftwork-{name}-", dir=MEMORY if memory else self.folder))
        if self.user is not None:
            shutil.chown(self.folder, self.user)
            shutil.chown(self.data, self.user)
        self._watch = subprocess.Popen(
            ["sh", "-c", _WATCH, "watch", last_signal, str(self.folder), str(self.data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            process_group=0,
        )

    def admit(self, program: Program, says_version: str = "--version") -> Program:
        """The program, or a copy of it in the folder if the unprivileged user may not run it where it is."""
        try:
            self.run(program, [str(program.file), says_version])
        except PermissionError:
            moved = program.moved(self.folder / "program")
            subprocess.run(["cp", "-R", str(program.tree), str(moved.tree)], check=True)
            subprocess.run(["chown", "-R", str(self.user), str(moved.tree)], check=True)
            return moved
        return program

    def run(self, program: Program, command: Sequence[str]) -> None:
        """Run a command to its end as the unprivileged user."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=program.environment(),
            user=self.user,
            group=self._group(),
            extra_groups=self._groups(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            raise ServiceError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")

    def spawn(self, program: Program, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a server as the unprivileged user, inside the watched process group."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=program.environment(),
                user=self.user,
                group=self._group(),
                extra_groups=self._groups(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._watch.pid,
            )

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def give(self, name: str, text: str) -> Path:
        """Write a configuration file that the unprivileged user can read."""
        path = self.folder / name
        path.write_text(text)
        if self.user is not None:
            shutil.chown(path, self.user)
        return path

    def close(self) -> None:
        with suppress(OSError):
            self._watch.communicate(b"done\n")

    def _group(self) -> int | None:
        return None if self.user is None else pwd.getpwnam(self.user).pw_gid

    def _groups(self) -> list[str | int] | None:
        return None if self.user is None else []


class Server(ABC):
    """One server process that can be stopped, killed and started again on the same port and data."""

    says_version = "--version"

    def __init__(self, program: Program, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.program = sandbox.admit(program, self.says_version)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.close)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command to run in the foreground."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    def start_again(self) -> None:
        """Start after a stop or a kill; returns when the server answers."""
        if self.running:
            raise ServiceError(f"{type(self).__name__} is already running.")
        self._start(time.monotonic() + START_SECONDS)

    def start_first(self) -> Self:
        """Start for the first time; another port is taken if ours was lost in the meantime."""
        for attempt in range(3):
            try:
                self.start_again()
            except ServiceError:
                if attempt == 2 or "ddress already in use" not in self._log_tail():
                    self.close()
                    raise
                self.port = free_port()
            else:
                break
        return self

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process of a running server."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop in the regular way; the data stays."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill without warning; the data stays as it is at that instant."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop and delete the data."""
        if os.getpid() != self._owner:
            return  # a forked child inherits the exit hook but not the server
        atexit.unregister(self.close)
        self.stop()
        self.sandbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, deadline: float) -> None:
        self._process = self.sandbox.spawn(self.program, self.command())
        while not self.ready():
            if self._process.poll() is not None:
                if self.may_try_again(self._log_tail()) and time.monotonic() < deadline:
                    time.sleep(0.05)
                    self._process = self.sandbox.spawn(self.program, self.command())
                    continue
                raise ServiceError(f"{type(self).__name__} ended while starting:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise ServiceError(f"{type(self).__name__} does not answer:\n{self._log_tail()}")
            time.sleep(0.02)

    def may_try_again(self, log: str) -> bool:  # noqa: ARG002 -- for servers with a passing reason to refuse
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _log_tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self.sandbox.log.read_text(errors="replace").splitlines()[-8:])
        return ""
