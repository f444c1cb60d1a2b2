"""`work` and `demo`: run a worker that a program declares, or watch a small fleet."""

from __future__ import annotations

import logging
import os
import sys

import click

from shiftwork.cli.shell import Answer, Command, current, refuse


@click.command(cls=Command)
@click.argument("target", metavar="MODULE:WORKER")
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True, help="Kept alive so many.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Tasks at once in each [default: the worker's own].")
@click.option("--until-idle", is_flag=True, help="End when there is nothing left to do.")
def work(*, target: str, processes: int, concurrency: int | None, until_idle: bool) -> Answer:
    """Run the worker that a module declares, until it is stopped."""
    shell = current()
    if shell.workspace not in {None, "default"}:
        refuse("a worker names its workspace itself: Worker(workspace=...)")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    from shiftwork.worker import command  # noqa: PLC0415  # no worker for `--help`

    if shell.token is not None:
        os.environ["SHIFTWORK_TOKEN"] = shell.token  # where this worker, its heartbeats and its children look

    return command.run(target, url=shell.store, processes=processes, concurrency=concurrency, until_idle=until_idle)


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Keep the queue's file to look at afterwards.")
def demo(*, keep: bool) -> Answer:
    """Watch a small fleet work off a DAG. It needs nothing and leaves nothing behind."""
    from shiftwork.demo import run  # noqa: PLC0415  # no demo for `--help`

    return run(keep=keep, json=current().json)
