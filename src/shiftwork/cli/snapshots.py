"""`snapshot`, `restore`, `copy`: whole queues, into files and from one database into another."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shiftwork.cli import printing
from shiftwork.cli.groups import Group
from shiftwork.cli.shell import Answer, Command, Shell, current, refuse_absent, refuse_memory, with_queue
from shiftwork.model.errors import InputError

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.snapshots.copy import Copied
    from shiftwork.snapshots.model import Snapshot
    from shiftwork.snapshots.row_batches import Progress
    from shiftwork.snapshots.snapshot_file import Head

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Group, namespace="snapshots", covers={"take": "snapshot"}, invoke_without_command=True)
@click.option("--to", "file", type=FILE, metavar="FILE", help="Write to this file instead of the snapshot folder.")
@click.pass_context
def snapshot(context: click.Context, *, file: Path | None) -> None:
    """Save the whole queue at this moment to a file. The queue continues meanwhile."""
    if context.invoked_subcommand is not None:
        return
    if file is None:
        context.invoke(take)
    else:
        _save(current(), file)


@with_queue()
async def take(shell: Shell, queue: AnyQueue) -> None:
    made = await queue.snapshots.take()
    shell.answer(made, lambda: click.echo(f"{made.name}: {made.size} bytes, checksum {made.checksum}"))


def _save(shell: Shell, path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} already exists", where="--to", hint="Name a new file.")
    head = asyncio.run(_write(shell, path))
    answer = {"file": str(path), "size": path.stat().st_size, **_facts(head)}
    shell.answer(answer, lambda: click.echo(f"{path}: {answer['rows']} rows, checksum {head.checksum}"))


async def _write(shell: Shell, path: Path) -> Head:
    from shiftwork.snapshots.copy import save  # noqa: PLC0415  # no store for `--help`

    async with await shell.open_database() as queue:
        return await save(queue.url, path, queue.now(), _progress(shell))


def _facts(head: Head) -> dict[str, Any]:
    rows = sum(head.counts.values())
    known = {"created_at": head.created_at, "schema": head.schema_name, "checksum": head.checksum}
    return {**known, "rows": rows, "counts": head.counts}


@snapshot.shows("list")
def _table(found: list[Snapshot]) -> None:
    """List the snapshots in the folder, the newest first."""
    columns = ["snapshot", "taken at", "bytes", "schema", "checksum"]
    printing.table(columns, [_row(each) for each in found], "no snapshots")


def _row(each: Snapshot) -> tuple[object, ...]:
    return each.name, printing.when(each.created_at), each.size, each.schema, each.checksum


@click.command(cls=Command)
@click.argument("file", type=FILE, metavar="FILE")
@click.option("--verify", is_flag=True, help="Read all of it back to verify it.")
def restore(*, file: Path, verify: bool) -> Answer:
    """Write a snapshot into the empty queue at --store, all or nothing."""
    shell = current()
    shell.refuse_server()
    return asyncio.run(_restore(shell, file, verify=verify))


async def _restore(shell: Shell, file: Path, *, verify: bool) -> None:
    from shiftwork.snapshots import copy as copying  # noqa: PLC0415  # no store for `--help`

    _print(shell, await copying.restore(file, shell.store, verify=verify, progress=_progress(shell)))


@click.command(cls=Command)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--verify", is_flag=True, help="Read all of it back to verify it.")
def copy(*, source: str, target: str, verify: bool) -> Answer:
    """Copy the whole queue at one URL, at this moment, into the empty one at another, all or nothing."""
    shell = current()
    for where, url in (("FROM", source), ("TO", target)):
        shell.refuse_server(url)
        refuse_memory(url, where)
    refuse_absent(source)
    return asyncio.run(_copy(shell, source, target, verify=verify))


async def _copy(shell: Shell, source: str, target: str, *, verify: bool) -> None:
    from shiftwork.snapshots import copy as copying  # noqa: PLC0415  # no store for `--help`

    _print(shell, await copying.copy(source, target, verify=verify, progress=_progress(shell)))


def _print(shell: Shell, copied: Copied) -> None:
    answer = {"rows": copied.rows, "counts": copied.counts, "checksum": copied.checksum}
    shell.answer(answer, lambda: click.echo(f"{copied.rows} rows, checksum {copied.checksum}"))


def _progress(shell: Shell) -> Progress | None:
    """Show progress on a terminal."""
    if shell.json or not sys.stderr.isatty():
        return None
    return lambda table, rows: click.echo(f"\r\x1b[K{rows} rows, at {table}\r", err=True, nl=False)
