"""Why work waits, in the words of `status`, `explain`, `watch` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing

if TYPE_CHECKING:
    from shiftwork.observe.model import Cause, WaitingWork

SHOWN_TYPES = 3


def headline(found: WaitingWork) -> str:
    if not found.waiting:
        return f"nothing waits, {found.running} running"
    return f"{found.waiting:,} waiting, {'nothing runs' if found.is_idle else f'{found.running:,} running'}"


def sentence(cause: Cause) -> str:
    """A cause in a line: how many tasks, why, and until when."""
    until = f", until {printing.when(cause.until)}" if cause.until is not None else ""
    return f"{cause.tasks:,} task{'' if cause.tasks == 1 else 's'} ({types(cause)}): {cause.what}{until}"


def types(cause: Cause) -> str:
    shown = ", ".join(cause.types[:SHOWN_TYPES])
    return f"{shown}, ..." if len(cause.types) > SHOWN_TYPES else shown


def report(found: WaitingWork) -> None:
    click.echo(headline(found))
    if found.causes:
        table(found)


def table(found: WaitingWork) -> None:
    rows = [(c.tasks, types(c), c.what, c.lifts, printing.when(c.until)) for c in found.causes]
    printing.table(["tasks", "types", "why they wait", "what lifts it", "until"], rows, "nothing waits")
