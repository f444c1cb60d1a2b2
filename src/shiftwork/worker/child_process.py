"""A process of a fleet: how it starts, reports its end, leaves interrupts to the fleet, and ends with it."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec

from shiftwork.model.errors import InputError, ShiftworkError, from_dict

log = logging.getLogger("shiftwork.worker")
MAX_REPORT_BYTES = 65_536
"""In bytes. A pipe buffers this much without a reader."""


VARIABLE = "SHIFTWORK_CHILD"
"""The variable with a fleet process's options. They are not in its arguments: every user of the machine can read those,
and the store's address may contain a password."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a fleet process."""

    target: str
    url: str
    agent_id: str
    runtime_id: str
    concurrency: int | None = None
    until_idle: bool = False
    quiet: bool = False
    """Warnings and errors only."""
    pipes: tuple[int, int] | None = None
    """The pipe on which it reports why it ends, and the pipe that closes with the fleet."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "shiftwork.worker.load_worker"]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, VARIABLE: msgspec.json.encode(self).decode()}


def started_with() -> Start:
    """Read once: processes started by handlers do not belong to the fleet."""
    return msgspec.json.decode(os.environ.pop(VARIABLE), type=Start)


def begin(pipes: Sequence[int] | None) -> Callable[[str], None] | None:
    """Act as a child of the fleet; returns the function that reports why this process ends, or None without a fleet."""
    if not pipes:
        return None
    ours, life = pipes
    for pipe in (ours, life):  # processes started by handlers must not inherit them
        os.set_inheritable(pipe, False)  # noqa: FBT003  # the signature is Python's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes; the fleet stops us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_fleet, args=(life,), name="shiftwork-fleet", daemon=True).start()
    return functools.partial(_print, ours)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Block SIGINT in processes started inside until they allow it: an interrupted Python start prints a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_fleet(life: int) -> None:
    """Stop as on SIGTERM once the pipe closes: only the fleet holds its other end, and never writes."""
    with suppress(OSError):
        os.read(life, 1)
        log.warning("the fleet of this process is gone; stopping")
        os.kill(os.getpid(), signal.SIGTERM)


def _print(pipe: int, why: str) -> None:
    with suppress(OSError):  # the fleet is gone
        os.set_blocking(pipe, False)
        os.write(pipe, why.encode())


def refusal(error: InputError) -> str:
    """The report of a process whose options cannot work."""
    fields = {**error.as_dict(), "what": error.what[:10_000]}
    return msgspec.json.encode(fields, enc_hook=str).decode()


def refused(body: str) -> ShiftworkError | None:
    """The error behind `refusal`; None for any other report."""
    try:
        return from_dict(msgspec.json.decode(body, type=dict[str, object]))
    except msgspec.DecodeError:
        return None
