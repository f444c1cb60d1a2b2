"""A process of a fleet: what it is started with, why it ends; it leaves interrupts to the fleet and ends with it."""

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
"""In bytes. A pipe holds this much before anyone reads."""


VARIABLE = "SHIFTWORK_CHILD"
"""Where a process of a fleet finds what it is started with. Not in its arguments: every user of the machine can read
those, and the store's address may hold a password."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of a fleet is started with."""

    target: str
    url: str
    agent_id: str
    runtime_id: str
    concurrency: int | None = None
    until_idle: bool = False
    quiet: bool = False
    """Warnings and errors only."""
    pipes: tuple[int, int] | None = None
    """Where it says why it ends, and what ends with the fleet."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "shiftwork.worker.command"]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, VARIABLE: msgspec.json.encode(self).decode()}


def started_with() -> Start:
    """Read once: what handlers start is not a process of the fleet."""
    return msgspec.json.decode(os.environ.pop(VARIABLE), type=Start)


def begin(pipes: Sequence[int] | None) -> Callable[[str], None] | None:
    """Be a child of the fleet at the other ends; what is returned tells it why this process ends. None without one."""
    if not pipes:
        return None
    ours, life = pipes
    for pipe in (ours, life):  # what handlers start should neither hold nor use them
        os.set_inheritable(pipe, False)  # noqa: FBT003  # the signature is Python's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts us all; the fleet stops us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_fleet, args=(life,), name="shiftwork-fleet", daemon=True).start()
    return functools.partial(_print, ours)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """A process started within it hears no SIGINT until it says so: Python's own start answers with a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_with_fleet(life: int) -> None:
    """Stop as by SIGTERM once the pipe ends: the fleet alone can hold its other end, and never writes."""
    with suppress(OSError):
        os.read(life, 1)
        log.warning("the fleet of this process is gone; it stops")
        os.kill(os.getpid(), signal.SIGTERM)


def _print(pipe: int, why: str) -> None:
    with suppress(OSError):  # the fleet has gone
        os.set_blocking(pipe, False)
        os.write(pipe, why.encode())


def refusal(error: InputError) -> str:
    """What a process says that was started with what cannot work."""
    fields = {**error.as_dict(), "what": error.what[:10_000]}
    return msgspec.json.encode(fields, enc_hook=str).decode()


def refused(body: str) -> ShiftworkError | None:
    """The error behind `refusal`; None if something else was said."""
    try:
        return from_dict(msgspec.json.decode(body, type=dict[str, object]))
    except msgspec.DecodeError:
        return None
