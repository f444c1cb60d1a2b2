"""Shared by the Python programs of the queues: their verbs, the marks that tasks write, and the timing.

    PROGRAM prepare URL              make the tables
    PROGRAM single URL COUNT         submit one by one; prints the seconds that took
    PROGRAM bulk URL COUNT MIXED     submit in batches of 1000 (or fill the table directly if there is no such call)
    PROGRAM send URL COUNT           submit a task every 50 ms that carries the time of the call
    PROGRAM hang URL                 submit a task that never ends
    PROGRAM work URL SETTINGS        work until stopped
    PROGRAM serve STORE              over HTTP: serve until stopped; prints the URL
    PROGRAM agents URL COUNT         50 at once, one task at a time each; prints the seconds that took

A task writes one byte, or its age in nanoseconds, to the file PEER_MARKS.
"""

import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MARKS = os.environ.get("PEER_MARKS", os.devnull)
EVERY_SEC = 0.05
CALLERS = 50
_open: dict[int, int] = {}


def mark(sent: int | None = None) -> None:
    """Write the mark of a task. Some queues fork their workers, so each process opens the file itself."""
    now, pid = time.time_ns(), os.getpid()
    if pid not in _open:
        _open[pid] = os.open(MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_open[pid], b"." if sent is None else b"%d\n" % (now - sent))


def priority(number: int) -> int:
    """Return one of a hundred priorities; a hundred consecutive tasks share one."""
    return number // 100 % 100


def batches(count: int, size: int = 1000) -> Iterator[range]:
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


@contextmanager
def timed() -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(time.perf_counter() - began)


def paced(count: int, send: Callable[[int], object]) -> None:
    for _ in range(count):
        began = time.perf_counter()
        send(time.time_ns())
        time.sleep(max(0.0, EVERY_SEC - (time.perf_counter() - began)))


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports below the kernel's ephemeral range."""
    for first in random.SystemRandom().sample(range(20_000, 32_000 - count), 100):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise SystemExit("no free ports")


def main(**verbs: Callable[..., None]) -> None:
    verb, url, *words = sys.argv[1:]
    verbs[verb](url, *(int(word) if word.isdigit() else word for word in words))
