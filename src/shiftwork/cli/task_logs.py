"""`logs`: the log of a task, written by its handler or its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing
from shiftwork.cli.shell import Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.task_logs.model import LogLine

_INDENT = " " * 9


@click.command(cls=Command)
@click.argument("task")
@click.option("--follow", "-f", is_flag=True, help="Follow new lines until the task has ended.")
@with_queue()
async def logs(shell: Shell, queue: AnyQueue, *, task: str, follow: bool) -> None:
    """Show a task's log: what its handler logged, and what a command agent printed. With --json as JSON lines."""
    attempt, after = None, 0
    while True:
        page = await queue.tasks.logs(task, after=after, wait=20 if follow else 0)
        for line in page.lines:
            if shell.json:
                printing.line(line)
                continue
            if line.fence != attempt:
                attempt = line.fence
                click.echo(printing.clean(f"attempt {line.fence} by {line.agent_id}, {printing.when(line.at)[:10]}"))
            click.echo(_text(line))
        is_last = page.ended if follow else not page.lines
        if is_last:
            break
        after = page.next
    if follow and not shell.json:
        click.echo(f"the task is {page.status}", err=True)


def _text(line: LogLine) -> str:
    """Its time, kind and text; further lines are indented."""
    what = line.level if line.kind == "log" else line.kind
    words = printing.clean(line.text).replace("\n", f"\n{_INDENT}")
    mark = "" if what in {"info", "text"} else f"{what.replace('_', ' ')}: "
    return f"{printing.when(line.at)[11:19]} {mark}{words}"
