"""`backpressure`: whether the queue accepts more tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing
from shiftwork.cli.shell import Answer, Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.limits.model import Backpressure

SCOPES = ("high", "medium", "low", "total")


@click.command(cls=Command)
@with_queue()
async def backpressure(shell: Shell, queue: AnyQueue) -> Answer:
    """Show how full the queue is. What waits, the limits, and how many more find room."""
    found = await queue.control.backpressure()
    shell.answer(found, lambda: _show(found))
    return None


def _show(found: Backpressure) -> None:
    if not found.limits:
        click.echo("no limit is set: everything finds room")
        return
    rows = [(scope, found.waiting[scope], _or_none(found.limits[scope]), _room(found, scope)) for scope in SCOPES]
    printing.table(["level", "waiting", "at most", "room"], rows)
    click.echo()
    printing.facts([("state", found.state), ("full", found.full), ("warnings", found.warnings)])


def _room(found: Backpressure, scope: str) -> object:
    return "" if scope == "total" else _or_none(found.room[scope])


def _or_none(count: int | None) -> object:
    return "no limit" if count is None else count
