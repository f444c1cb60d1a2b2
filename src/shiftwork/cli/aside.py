"""Reserves standard output for one document: all other output goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from shiftwork.cli import printing

STDOUT, STDERR = 1, 2


@contextmanager
def printed_aside() -> Iterator[Callable[[Any], None]]:
    """Redirect output inside the block, also of child processes; yields a function that prints the document."""
    stream = sys.stdout
    stream.flush()
    ours = os.dup(STDOUT)
    aside = os.dup(STDERR) if sys.stderr is not None else os.open(os.devnull, os.O_WRONLY)

    def document(value: Any) -> None:
        stream.flush()  # code that kept the stream may have printed there
        with _stdout_is(ours), redirect_stdout(stream):
            printing.document(value)

    try:
        with _stdout_is(aside), redirect_stdout(sys.stderr):
            yield document
            stream.flush()
    finally:
        os.close(ours)
        os.close(aside)


@contextmanager
def _stdout_is(other: int) -> Iterator[None]:
    kept = os.dup(STDOUT)
    os.dup2(other, STDOUT)
    try:
        yield
    finally:
        os.dup2(kept, STDOUT)
        os.close(kept)
