"""A process of a fleet: it tells the fleet why it ends, leaves interrupts to it, and ends when it is gone."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from shiftwork.core.errors import InputError, ShiftworkError, from_dict

log = logging.getLogger("shiftwork.worker")
LONGEST_SAID = 65_536
"""In bytes. A pipe holds so much before anybody reads."""


def begin(pipes: Sequence[str]) -> Callable[[str], None] | None:
    """Be a child of the fleet at the other ends; what is returned tells it why this process ends. None without one."""
    if not pipes:
        return None
    ours, life = (int(pipe) for pipe in pipes)
    for pipe in (ours, life):  # what handlers start shall neither hold nor use them
        os.set_inheritable(pipe, False)  # noqa: FBT003  # the signature is Python's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts us all; the fleet stops us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_fleet, args=(life,), name="shiftwork-fleet", daemon=True).start()
    return functools.partial(_say, ours)


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


def _say(pipe: int, why: str) -> None:
    with suppress(OSError):  # the fleet has gone
        os.set_blocking(pipe, False)
        os.write(pipe, why.encode())


# -- refused -----------------------------------------------------------------------------------------------------------


def refusal(error: InputError) -> str:
    """What a process says that was started with what cannot work."""
    fields = {**error.as_dict(), "what": error.what[:10_000]}
    return msgspec.json.encode(fields, enc_hook=str).decode()


def refused(said: str) -> ShiftworkError | None:
    """The error behind `refusal`; None if something else was said."""
    try:
        return from_dict(msgspec.json.decode(said, type=dict[str, object]))
    except msgspec.DecodeError:
        return None
