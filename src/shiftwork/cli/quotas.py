"""`quota`: what the operator of a server lets each workspace have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing
from shiftwork.cli.groups import listing
from shiftwork.cli.shell import Answer, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.limits.model import QuotaInForce

COUNT = click.IntRange(1, 10**15)


@listing("quotas")
def quotas() -> None:
    """Limit what each workspace may store and submit. Alone: the list."""


@quotas.command("list")
@with_queue()
async def list_(shell: Shell, queue: AnyQueue) -> Answer:
    """List the workspaces that have a quota."""
    found = await queue.quotas.list()
    columns = ["workspace", "tasks", "bytes", "submits a minute", "set", "by"]
    shell.answer(found, lambda: printing.table(columns, [_row(each) for each in found], "no quotas"))
    return None


def _row(found: QuotaInForce) -> tuple[object, ...]:
    used = (_of(found.tasks, found.max_tasks), _of(found.bytes, found.max_bytes))
    return found.workspace, *used, found.submits_per_minute or "no limit", printing.when(found.set_at), found.set_by


def _of(used: int | None, most: int | None) -> str:
    return "no limit" if most is None else f"{used} of {most}"


@quotas.command()
@with_queue()
async def show(shell: Shell, queue: AnyQueue) -> Answer:
    """Show the quota of the workspace, and what it has used of it."""
    found = await queue.quotas.get()
    rate = "no limit" if found.submits_per_minute is None else f"{found.submits_per_minute}, now {found.room}"
    facts = [("workspace", found.workspace), ("tasks", _of(found.tasks, found.max_tasks))]
    facts += [("bytes", _of(found.bytes, found.max_bytes)), ("submits a minute", rate)]
    shell.answer(found, lambda: printing.facts(facts))
    return None


@quotas.command("set")
@click.argument("tenant", metavar="WORKSPACE")
@click.option("--max-tasks", type=COUNT, help="Tasks that are stored, whatever their status.")
@click.option("--max-bytes", type=COUNT, help="Of what was submitted, and of artifacts.")
@click.option("--submits-per-minute", type=COUNT, help="Tasks, not calls; bursts up to a minute's worth are allowed.")
@with_queue(create=True)
async def set_(shell: Shell, queue: AnyQueue, *, tenant: str, **terms: int | None) -> Answer:
    """Set what WORKSPACE may have. What is left out has no limit; without any option the quota is removed."""
    found = await queue.quotas.set(tenant, **terms)
    name, tasks, size, rate, *_ = _row(found)
    line = f"{printing.clean(str(name))}: tasks {tasks}, bytes {size}, submits a minute {rate}"
    shell.answer(found, lambda: click.echo(line))
    return None
