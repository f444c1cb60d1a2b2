"""`tell` and `instructions`: messages to the agent that holds a task."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from shiftwork.cli import printing
from shiftwork.cli.shell import Command, Shell, with_queue

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.model.reports import Instruction


@click.command(cls=Command)
@click.argument("task")
@click.argument("text")
@with_queue()
async def tell(shell: Shell, queue: AnyQueue, *, task: str, text: str) -> None:
    """Send an instruction to the agent that holds a task, or that claims it next. TEXT `-` is read from stdin.

    The agent gets it with its next heartbeat. `instructions` shows whether it has acknowledged it.
    """
    sent = await queue.tell(task, sys.stdin.read().rstrip("\n") if text == "-" else text)
    shell.answer(sent, lambda: click.echo(f"instruction {sent.seq} waits for the task's agent"))


@click.command(cls=Command)
@click.argument("task")
@with_queue()
async def instructions(shell: Shell, queue: AnyQueue, *, task: str) -> None:
    """Show the instructions sent to a task, and whether each was delivered and acknowledged."""
    found: list[Instruction] = []
    while page := await queue.tasks.instructions(task, after=found[-1].seq if found else 0):
        found += page
    columns = ["seq", "sent", "by", "status", "attempt", "text"]
    rows = [
        [each.seq, printing.when(each.sent_at), each.sent_by, each.status, each.fence or "", each.text]
        for each in found
    ]
    shell.answer(found, lambda: printing.table(columns, rows, "no instructions"))
