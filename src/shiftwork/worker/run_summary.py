"""A worker's summary, printed when it ends: of one process, or of all processes of a fleet."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from shiftwork.worker.delivery import COUNTS, Summary

FOLDER = "SHIFTWORK_SUMMARIES"
"""The folder in which processes of a fleet write their summaries. Only the fleet sets it."""

Report = Callable[[Sequence[Summary], int], None]
"""Called with the summary of each process, and the number that ended without one, for example by SIGKILL."""


def total(summaries: Sequence[Summary], silent: int) -> dict[str, Any]:
    """The sum, as a document, without processes that reported nothing."""
    counts = {name: sum(getattr(summary, name) for summary in summaries) for name in COUNTS}
    went_offline = any(summary.went_offline for summary in summaries)
    cost = round(sum(summary.cost_usd for summary in summaries), 6)
    took = round(max((summary.took_sec for summary in summaries), default=0.0), 3)
    sums = {**counts, "cost_usd": cost, "took_sec": took}
    return {"processes": len(summaries), "silent": silent, **sums, "went_offline": went_offline}


@contextmanager
def gathering(report: Report | None) -> Iterator[None]:
    """Processes started inside write their summaries, which are reported at the end."""
    if report is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-") as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER]
        summaries, silent = [], 0
        for page in Path(folder).iterdir():
            try:
                summaries.append(msgspec.json.decode(page.read_bytes(), type=Summary))
            except msgspec.DecodeError:  # begun but never completed
                silent += 1
    report(summaries, silent)


def noting() -> Report | None:
    """The summary file of one process of a fleet; None if no summary is wanted.

    The file exists from the start, so that a killed process is noticed.
    """
    folder = os.environ.pop(FOLDER, None)  # processes started by handlers write nothing here
    if folder is None:
        return None
    page = Path(folder) / secrets.token_hex(8)

    def write(summaries: Sequence[Summary], _silent: int) -> None:
        with suppress(OSError):  # a full disk: the work itself is done
            page.write_bytes(b"".join(msgspec.json.encode(summary) for summary in summaries))

    write([], 0)
    return write
