"""`serve --processes N`: server processes that share one port, each replaced when it dies.

The parent answers no calls itself. It keeps a socket open for each process, so that callers assigned to a dead process
wait for its replacement instead of being refused.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NoReturn

import msgspec

from shiftwork.model.errors import InputError, ShiftworkError, from_dict
from shiftwork.server.options import STOP_GRACE_SEC, Options, check_options
from shiftwork.wire.listen_socket import address, listen

log = logging.getLogger("shiftwork.server")
READY = b"ready"
CRASH_SEC = 5.0
"""A process that ends within this time has crashed at its start; its replacement is then delayed."""
MAX_BACKOFF_SEC = 30.0
KILL_AFTER_SEC = STOP_GRACE_SEC + 10.0
MAX_REPORT_BYTES = 65_536
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Run = Callable[[Options, socket.socket | None, Callable[[str], None]], None]
"""Serves on a socket until stopped, in a process of its own, and announces its address."""


class _Process(msgspec.Struct):
    place: int
    pid: int
    began: float
    crashes: int = 0


class ServerProcesses:
    """The parent of N server processes."""

    def __init__(self, options: Options, count: int, run: Run) -> None:
        check(options, count)
        self._options = options
        self._count = count
        self._run = run
        self._sockets: list[socket.socket] = []
        self._processes: dict[int, _Process] = {}
        self._stopping = False
        self._life: tuple[int, int]
        """A pipe that closes with the parent, as its processes see it."""

    def serve(self, announce: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        self._life = os.pipe()
        with ExitStack() as opened:
            for end in self._life:
                opened.callback(os.close, end)
            self._listen(opened)
            try:
                for place in range(self._count):  # the first one migrates the schema
                    self._start(place)
                announce(address(self._sockets[0]))
                self._keep_alive()
            finally:
                self._end_all()

    def _listen(self, opened: ExitStack) -> None:
        options, port = self._options, self._options.port
        for _ in range(self._count):
            listening = opened.enter_context(listen(options.host, port, reuse_port=True))
            port = listening.getsockname()[1]
            self._sockets.append(listening)

    def _start(self, place: int, crashes: int = 0) -> None:
        """Start a process and wait until it serves; raises if it cannot."""
        if self._stopping:
            return
        reads, writes = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the child must not run our handler
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            self._be_child(place, writes)
        os.close(writes)
        self._processes[pid] = _Process(place, pid, time.monotonic(), crashes)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        with os.fdopen(reads, "rb") as pipe:
            report = pipe.read(MAX_REPORT_BYTES)
        if report != READY and not self._stopping:
            raise _error_of(report)

    def _be_child(self, place: int, ready: int) -> NoReturn:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes; the parent stops us
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            life, of_parent = self._life
            os.close(of_parent)
            threading.Thread(target=_end_with_parent, args=(life,), name="shiftwork-parent", daemon=True).start()
            for other in self._sockets[:place] + self._sockets[place + 1 :]:
                other.close()

            def announce(_: str) -> None:
                os.write(ready, READY)
                os.close(ready)

            self._run(_options_of(self._options, place), self._sockets[place], announce)
            code = 0
        except ShiftworkError as error:
            try:
                os.write(ready, msgspec.json.encode(error.as_dict(), enc_hook=str)[:MAX_REPORT_BYTES])
            except OSError:  # it was already serving, so the parent has closed the pipe
                log.error("%s", error)  # noqa: TRY400  # the message is for people; a traceback would hide it
        except BaseException:
            log.exception("server process %d failed", os.getpid())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _keep_alive(self) -> None:
        while not self._stopping:
            pid, status = os.wait()
            ended = self._processes.pop(pid, None)
            if ended is not None and not self._stopping:
                self._replace(ended, status)

    def _replace(self, ended: _Process, status: int) -> None:
        lived = time.monotonic() - ended.began
        crashes = ended.crashes + 1 if lived < CRASH_SEC else 0
        pause = 0.0 if crashes < 2 else min(MAX_BACKOFF_SEC, 2.0 ** (crashes - 2))
        log.warning(
            "server process %d ended with %s after %.1f s; restarting in %g s",
            *(ended.pid, _name(os.waitstatus_to_exitcode(status)), lived, pause),
        )
        while pause > 0 and not self._stopping:
            time.sleep(min(pause, 0.1))
            pause -= 0.1
        try:
            self._start(ended.place, crashes)
        except ShiftworkError as error:  # the process has ended, so `os.wait` returns it next
            log.error("%s", error)  # noqa: TRY400  # the message is for people; a traceback would hide it

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _end_all(self) -> None:
        """Wait for the processes; one that does not end is killed."""
        self._stop()
        deadline = time.monotonic() + KILL_AFTER_SEC
        while self._processes:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                self._processes.pop(pid, None)
            elif time.monotonic() > deadline:
                log.error("server processes %s do not end; killing them", sorted(self._processes))
                for each in self._processes:
                    os.kill(each, signal.SIGKILL)
                deadline += KILL_AFTER_SEC
            else:
                time.sleep(0.01)


def check(options: Options, count: int) -> None:
    check_options(options)
    if count < 1:
        raise InputError(f"expected 1 or more processes, got {count}", where="--processes")
    if count > 1 and options.test_clock:
        raise InputError("a test clock needs a single process", where="--test-clock")
    if count > 1 and not (hasattr(os, "fork") and hasattr(socket, "SO_REUSEPORT")):
        raise InputError(
            "this system cannot share a port between processes",
            where="--processes",
            hint="Start several servers on different ports behind a proxy.",
        )


def _options_of(options: Options, place: int) -> Options:
    """Return the options of one process: only the first does work that must be done once."""
    return (
        options
        if place == 0
        else msgspec.structs.replace(options, maintenance=False, watch=None, on_below_minimum=None)
    )


def _error_of(report: bytes) -> ShiftworkError:
    """The error that kept a process from serving."""
    with suppress(msgspec.DecodeError):
        return from_dict(msgspec.json.decode(report, type=dict[str, object]))
    return ShiftworkError("a server process ended before it could serve", hint="See its log.")


def _end_with_parent(life: int) -> None:
    """Stop as on SIGTERM once the pipe closes: only the parent holds its other end, and never writes."""
    with suppress(OSError):
        os.read(life, 1)
        os.kill(os.getpid(), signal.SIGTERM)


def _name(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
